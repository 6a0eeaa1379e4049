#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "host/parallel.hpp"
#include "host/short_bytes.hpp"

/// Strings of NumPy, Python and Arrow as dense bytes and the offsets at which they begin, and back.
namespace gpuhash::bindings {

namespace {

/// The items of a dense array on the host.
template <class T>
std::span<T> host_items(const Array& array, DType dtype, const char* role) {
  if (array.device.platform != "cpu" || !array.contiguous || array.dtype != dtype)
    throw std::invalid_argument(std::string(role) + " is not a dense array of " + std::string(name(dtype)) +
                                " on the host");
  if (!std::is_const_v<T> && array.readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return {static_cast<T*>(array.data), static_cast<std::size_t>(array.elements())};
}

void need_fit(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(what);
}

/// Calls body(begin, end) for pieces of [0, count), on several threads; may be interrupted.
template <class Body>
void for_each_piece(std::int64_t count, Body body) {
  host::for_each_part(count, host::reader_parts(count), [&](int, std::int64_t begin, std::int64_t end) {
    host::in_pieces(begin, end, host::kKeysPerPiece, body);
  });
}

/// offsets [count + 1] of strings of these lengths; a negative one says that the string is none. The position of the
/// first of these, or -1.
template <class Length>
std::int64_t write_offsets(std::int64_t count, std::int64_t* offsets, Length length) {
  const int parts = host::reader_parts(count);
  std::vector<std::int64_t> ends(static_cast<std::size_t>(parts));
  std::vector<std::int64_t> refused(static_cast<std::size_t>(parts), count);
  host::for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t sum = 0;
    std::int64_t first = count;
    host::in_pieces(begin, end, host::kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        const std::int64_t bytes = length(i);
        if (bytes < 0)
          first = std::min(first, i);
        else
          sum += bytes;
        offsets[i + 1] = sum;
      }
    });
    ends[static_cast<std::size_t>(part)] = sum;
    refused[static_cast<std::size_t>(part)] = first;
  });
  offsets[0] = 0;
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  host::for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    if (part == 0) return;
    const std::int64_t base = ends[static_cast<std::size_t>(part - 1)];
    for (std::int64_t i = begin; i < end; ++i) offsets[i + 1] += base;
  });
  const std::int64_t first = *std::min_element(refused.begin(), refused.end());
  return first == count ? -1 : first;
}

/// Can UTF-8 hold the character? Halves of a surrogate pair it cannot.
bool is_scalar(std::uint32_t code) { return code < 0xD800 || (code > 0xDFFF && code <= 0x10FFFF); }

/// Bytes of characters as UTF-8; -1 where one is none.
template <class Character>
std::int64_t utf8_length(const Character* characters, std::int64_t count) {
  std::uint32_t all = 0;
  for (std::int64_t i = 0; i < count; ++i) all |= characters[i];
  if (all < 0x80) return count;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = characters[i];
    if (!is_scalar(code)) return -1;
    bytes += 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000);
  }
  return bytes;
}

/// Writes as many bytes as utf8_length() says.
template <class Character>
void write_utf8(const Character* characters, std::int64_t count, std::uint8_t* to, std::int64_t bytes) {
  if (bytes == count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(characters[i]);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = characters[i];
    const auto tail = [code](int shift) { return static_cast<std::uint8_t>(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x80) {
      *to++ = static_cast<std::uint8_t>(code);
    } else if (code < 0x800) {
      *to++ = static_cast<std::uint8_t>(0xC0 | code >> 6);
      *to++ = tail(0);
    } else if (code < 0x10000) {
      *to++ = static_cast<std::uint8_t>(0xE0 | code >> 12);
      *to++ = tail(6);
      *to++ = tail(0);
    } else {
      *to++ = static_cast<std::uint8_t>(0xF0 | code >> 18);
      *to++ = tail(12);
      *to++ = tail(6);
      *to++ = tail(0);
    }
  }
}

/// Characters without the zeros that fill a row of fixed width.
template <class Character>
std::int64_t trimmed(const Character* row, std::int64_t width) {
  while (width > 0 && row[width - 1] == 0) --width;
  return width;
}

/// FixedRows [n, width] of characters or bytes.
template <class T>
struct FixedRows {
  FixedRows(const Array& array, DType dtype, std::int64_t count) : items(host_items<T>(array, dtype, "rows")) {
    need_fit(array.shape.size() == 2 && array.shape[0] == count, "rows are not [n, width]");
    width = array.shape[1];
  }
  T* operator[](std::int64_t row) const { return items.data() + row * width; }

  std::span<T> items;
  std::int64_t width;
};

struct StringOffsets {
  explicit StringOffsets(const Array& array) : items(host_items<const std::int64_t>(array, DType::kInt64, "offsets")) {
    need_fit(!items.empty(), "offsets are empty");
  }
  std::int64_t count() const { return static_cast<std::int64_t>(items.size()) - 1; }
  std::int64_t begin(std::int64_t i) const { return items[static_cast<std::size_t>(i)]; }
  std::int64_t length(std::int64_t i) const { return begin(i + 1) - begin(i); }
  /// Do the strings end where the data do?
  void need_data(std::int64_t bytes) const {
    need_fit(begin(count()) <= bytes, "data is shorter than the offsets say");
  }

  std::span<const std::int64_t> items;
};

std::int64_t* offsets_to_write(const Array& array, std::int64_t count) {
  const auto items = host_items<std::int64_t>(array, DType::kInt64, "offsets");
  need_fit(static_cast<std::int64_t>(items.size()) == count + 1, "offsets are not [n + 1]");
  return items.data();
}

std::int64_t measure_rows(const Array& rows, const Array& offsets) {
  const std::int64_t count = rows.shape.empty() ? 0 : rows.shape[0];
  std::int64_t* const to = offsets_to_write(offsets, count);
  if (rows.dtype == DType::kUInt8) {
    const FixedRows<const std::uint8_t> bytes(rows, DType::kUInt8, count);
    const GilRelease unlocked;
    return write_offsets(count, to, [&](std::int64_t i) { return trimmed(bytes[i], bytes.width); });
  }
  const FixedRows<const std::uint32_t> characters(rows, DType::kUInt32, count);
  const GilRelease unlocked;
  return write_offsets(
      count, to, [&](std::int64_t i) { return utf8_length(characters[i], trimmed(characters[i], characters.width)); });
}

void pack_rows(const Array& rows, const Array& offsets_array, const Array& data) {
  const StringOffsets offsets(offsets_array);
  const auto to = host_items<std::uint8_t>(data, DType::kUInt8, "data");
  offsets.need_data(static_cast<std::int64_t>(to.size()));
  if (rows.dtype == DType::kUInt8) {
    const FixedRows<const std::uint8_t> bytes(rows, DType::kUInt8, offsets.count());
    const GilRelease unlocked;
    for_each_piece(offsets.count(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        host::copy_bytes(to.data() + offsets.begin(i), bytes[i], offsets.length(i));
    });
    return;
  }
  const FixedRows<const std::uint32_t> characters(rows, DType::kUInt32, offsets.count());
  const GilRelease unlocked;
  for_each_piece(offsets.count(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      write_utf8(characters[i], trimmed(characters[i], characters.width), to.data() + offsets.begin(i),
                 offsets.length(i));
  });
}

/// Reads valid UTF-8, and of other bytes anything; at most `width` characters.
void read_utf8(const std::uint8_t* from, std::int64_t bytes, std::uint32_t* to, std::int64_t width) {
  std::int64_t at = 0;
  std::int64_t written = 0;
  while (at < bytes && written < width) {
    std::uint32_t code = from[at++];
    const int more = code < 0xC0 ? 0 : code < 0xE0 ? 1 : code < 0xF0 ? 2 : 3;
    if (more > 0) code &= 0x3Fu >> more;
    for (int k = 0; k < more && at < bytes; ++k) code = code << 6 | (from[at++] & 0x3Fu);
    to[written++] = code;
  }
  std::fill(to + written, to + width, 0u);
}

void unpack_rows(const Array& offsets_array, const Array& data, const Array& rows) {
  const StringOffsets offsets(offsets_array);
  const auto from = host_items<const std::uint8_t>(data, DType::kUInt8, "data");
  offsets.need_data(static_cast<std::int64_t>(from.size()));
  if (rows.dtype == DType::kUInt8) {
    const FixedRows<std::uint8_t> bytes(rows, DType::kUInt8, offsets.count());
    const GilRelease unlocked;
    for_each_piece(offsets.count(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t length = std::min(offsets.length(i), bytes.width);
        host::copy_bytes(bytes[i], from.data() + offsets.begin(i), length);
        std::fill(bytes[i] + length, bytes[i] + bytes.width, std::uint8_t{0});
      }
    });
    return;
  }
  const FixedRows<std::uint32_t> characters(rows, DType::kUInt32, offsets.count());
  const GilRelease unlocked;
  for_each_piece(offsets.count(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      read_utf8(from.data() + offsets.begin(i), offsets.length(i), characters[i], characters.width);
  });
}

/// Which strings are taken: positions [m], negative ones for nulls, which are empty.
std::int64_t measure_taken(const Array& offsets_array, const Array& positions, const Array& taken) {
  const StringOffsets offsets(offsets_array);
  const auto from = host_items<const std::int64_t>(positions, DType::kInt64, "positions");
  std::int64_t* const to = offsets_to_write(taken, static_cast<std::int64_t>(from.size()));
  const GilRelease unlocked;
  return write_offsets(static_cast<std::int64_t>(from.size()), to, [&](std::int64_t i) -> std::int64_t {
    const std::int64_t position = from[static_cast<std::size_t>(i)];
    if (position < 0) return 0;
    return position < offsets.count() ? offsets.length(position) : -1;
  });
}

void take_strings(const Array& offsets_array, const Array& data, const Array& positions, const Array& taken_array,
                  const Array& out) {
  const StringOffsets offsets(offsets_array);
  const StringOffsets taken(taken_array);
  const auto bytes = host_items<const std::uint8_t>(data, DType::kUInt8, "data");
  const auto from = host_items<const std::int64_t>(positions, DType::kInt64, "positions");
  const auto to = host_items<std::uint8_t>(out, DType::kUInt8, "out");
  offsets.need_data(static_cast<std::int64_t>(bytes.size()));
  taken.need_data(static_cast<std::int64_t>(to.size()));
  need_fit(taken.count() == static_cast<std::int64_t>(from.size()), "offsets are not those of the positions");
  const GilRelease unlocked;
  for_each_piece(taken.count(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (const std::int64_t position = from[static_cast<std::size_t>(i)]; position >= 0)
        host::copy_bytes(to.data() + taken.begin(i), bytes.data() + offsets.begin(position), taken.length(i));
  });
}

/// Arrow's view of a string: its length; then the string itself where it has up to 12 bytes, else its first four bytes,
/// the number of a buffer, and where in that it begins.
class StringView {
 public:
  static constexpr std::int64_t kBytes = 16;

  explicit StringView(const std::uint8_t* view) : view_(view) {}
  std::int64_t length() const { return word(0); }
  bool is_inline() const { return length() <= 12; }
  const std::uint8_t* inlined() const { return view_ + 4; }
  std::int32_t buffer() const { return word(8); }
  std::int32_t begin() const { return word(12); }

 private:
  std::int32_t word(int at) const {
    std::int32_t value = 0;
    std::memcpy(&value, view_ + at, sizeof value);
    return value;
  }
  const std::uint8_t* view_;
};

/// Of views [n, 16]; those that are not valid are empty strings, whatever they hold.
std::int64_t measure_views(const Array& views, const Array* valid, const Array& offsets) {
  const auto bytes = host_items<const std::uint8_t>(views, DType::kUInt8, "views");
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / StringView::kBytes;
  const bool* const is_valid =
      valid == nullptr ? nullptr : host_items<const bool>(*valid, DType::kBool, "valid").data();
  need_fit(valid == nullptr || valid->elements() == count, "valid is not [n]");
  std::int64_t* const to = offsets_to_write(offsets, count);
  const GilRelease unlocked;
  return write_offsets(count, to, [&](std::int64_t i) -> std::int64_t {
    if (is_valid != nullptr && !is_valid[i]) return 0;
    return StringView(bytes.data() + i * StringView::kBytes).length();
  });
}

/// buffers: address and bytes of each. False where a view leads beyond them.
bool pack_views(const Array& views, const std::vector<std::pair<std::uintptr_t, std::int64_t>>& buffers,
                const Array& offsets_array, const Array& data) {
  const StringOffsets offsets(offsets_array);
  const auto bytes = host_items<const std::uint8_t>(views, DType::kUInt8, "views");
  const auto to = host_items<std::uint8_t>(data, DType::kUInt8, "data");
  need_fit(static_cast<std::int64_t>(bytes.size()) == offsets.count() * StringView::kBytes, "views are not [n, 16]");
  offsets.need_data(static_cast<std::int64_t>(to.size()));
  std::atomic<bool> sound = true;
  const GilRelease unlocked;
  for_each_piece(offsets.count(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t length = offsets.length(i);
      if (length == 0) continue;
      const StringView view(bytes.data() + i * StringView::kBytes);
      std::uint8_t* const place = to.data() + offsets.begin(i);
      if (view.is_inline()) {
        host::copy_bytes(place, view.inlined(), length);
        continue;
      }
      const auto number = static_cast<std::size_t>(view.buffer());
      if (number >= buffers.size() || view.begin() < 0 || view.begin() + length > buffers[number].second) {
        sound = false;
        return;
      }
      host::copy_bytes(place, reinterpret_cast<const std::uint8_t*>(buffers[number].first) + view.begin(), length);
    }
  });
  return sound;
}

/// Calls visit(characters, count) with those of a Python string, which are of 1, 2 or 4 bytes.
template <class Visit>
auto visit_characters(PyObject* text, Visit visit) {
  const std::int64_t count = PyUnicode_GET_LENGTH(text);
  const void* const characters = PyUnicode_DATA(text);
  switch (PyUnicode_KIND(text)) {
    case PyUnicode_1BYTE_KIND:
      return visit(static_cast<const std::uint8_t*>(characters), count);
    case PyUnicode_2BYTE_KIND:
      return visit(static_cast<const std::uint16_t*>(characters), count);
    default:
      return visit(static_cast<const std::uint32_t*>(characters), count);
  }
}

bool is_missing_string(PyObject* item, const py::tuple& missing) {
  if (PyFloat_Check(item)) return PyFloat_AS_DOUBLE(item) != PyFloat_AS_DOUBLE(item);
  for (const py::handle each : missing)
    if (item == each.ptr()) return true;
  return false;
}

/// The offsets of the Python strings of a list; whether they are text, bytes, or (None) neither; and the position of
/// the first item that is none of these, or -1. Items that are one of `missing` are not valid, and so are NaNs where
/// that is not empty.
py::tuple measure_objects(const py::list& items, const py::tuple& missing, const Array& offsets, const Array* valid) {
  const auto count = static_cast<std::int64_t>(items.size());
  std::int64_t* const to = offsets_to_write(offsets, count);
  bool* const is_valid = valid == nullptr ? nullptr : host_items<bool>(*valid, DType::kBool, "valid").data();
  need_fit(valid == nullptr || valid->elements() == count, "valid is not [n]");
  enum class Kind { kNone, kText, kBytes } kind = Kind::kNone;
  std::int64_t refused = -1;
  to[0] = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    PyObject* const item = PyList_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    const Kind own = PyUnicode_Check(item) ? Kind::kText : PyBytes_Check(item) ? Kind::kBytes : Kind::kNone;
    std::int64_t length = 0;
    if (own == Kind::kNone) {
      if (is_valid == nullptr || !is_missing_string(item, missing)) length = -1;
    } else if (kind != Kind::kNone && kind != own) {
      length = -1;
    } else {
      kind = own;
      length = own == Kind::kBytes
                   ? PyBytes_GET_SIZE(item)
                   : visit_characters(item, [](const auto* text, auto size) { return utf8_length(text, size); });
    }
    if (length < 0) {
      refused = i;
      break;
    }
    if (is_valid != nullptr) is_valid[i] = own != Kind::kNone;
    to[i + 1] = to[i] + length;
  }
  const py::object text = kind == Kind::kNone ? py::object(py::none()) : py::object(py::bool_(kind == Kind::kText));
  return py::make_tuple(text, refused);
}

void pack_objects(const py::list& items, const Array& offsets_array, const Array& data) {
  const StringOffsets offsets(offsets_array);
  const auto to = host_items<std::uint8_t>(data, DType::kUInt8, "data");
  offsets.need_data(static_cast<std::int64_t>(to.size()));
  need_fit(static_cast<std::int64_t>(items.size()) == offsets.count(), "offsets are not those of the items");
  for (std::int64_t i = 0; i < offsets.count(); ++i) {
    PyObject* const item = PyList_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    std::uint8_t* const place = to.data() + offsets.begin(i);
    const std::int64_t length = offsets.length(i);
    if (PyBytes_Check(item))
      host::copy_bytes(place, PyBytes_AS_STRING(item), length);
    else if (PyUnicode_Check(item))
      visit_characters(item, [&](const auto* text, auto size) { write_utf8(text, size, place, length); });
  }
}

}  // namespace

void bind_strings(py::module_& module) {
  module.def("measure_rows", &measure_rows, py::arg("rows"), py::arg("offsets"));
  module.def("pack_rows", &pack_rows, py::arg("rows"), py::arg("offsets"), py::arg("data"));
  module.def("unpack_rows", &unpack_rows, py::arg("offsets"), py::arg("data"), py::arg("rows"));
  module.def("measure_taken", &measure_taken, py::arg("offsets"), py::arg("positions"), py::arg("taken"));
  module.def("take_strings", &take_strings, py::arg("offsets"), py::arg("data"), py::arg("positions"), py::arg("taken"),
             py::arg("out"));
  module.def("measure_views", &measure_views, py::arg("views"), py::arg("valid"), py::arg("offsets"));
  module.def("pack_views", &pack_views, py::arg("views"), py::arg("buffers"), py::arg("offsets"), py::arg("data"));
  module.def("measure_objects", &measure_objects, py::arg("items"), py::arg("missing"), py::arg("offsets"),
             py::arg("valid"));
  module.def("pack_objects", &pack_objects, py::arg("items"), py::arg("offsets"), py::arg("data"));
}

}  // namespace gpuhash::bindings
