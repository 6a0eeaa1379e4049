#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/atomics.cuh"
#include "cuda/walk/probe.cuh"
#include "shared/arithmetic.hpp"

/// How values are combined with the cells of their keys, in global or in shared memory.
namespace gpuhash::cuda {

/// cell = combine(cell, value) by compare-and-swap of the word that holds the cell.
template <class T>
__device__ void swap_in(T* cell, Action op, T value) {
  if constexpr (sizeof(T) == 16) {
    Words seen = load_contended(cell);
    for (;;) {
      const T next = combine(op, cast_bits<T>(seen), value);
      const Words was = cas128(cell, seen, cast_bits<Words>(next));
      if (was.low == seen.low && was.high == seen.high) return;
      seen = was;
    }
  } else if constexpr (sizeof(T) == 1) {
    // The hardware swaps no single bytes: swap the aligned word around it. Its other bytes stay as they are, also where
    // they belong to rows not taken yet; compute-sanitizer's initcheck notes that those are read.
    const auto address = reinterpret_cast<std::uintptr_t>(cell);
    auto* word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
    const unsigned shift = 8 * (address & 3);
    unsigned seen = *reinterpret_cast<volatile unsigned*>(word);
    for (;;) {
      const auto old = cast_bits<T>(static_cast<std::uint8_t>(seen >> shift));
      const unsigned next = cast_bits<std::uint8_t>(combine(op, old, value));
      const unsigned was = atomicCAS(word, seen, (seen & ~(0xffu << shift)) | next << shift);
      if (was == seen) return;
      seen = was;
    }
  } else {
    using Word = std::conditional_t<sizeof(T) == 8, unsigned long long,
                                    std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>>;
    auto* word = reinterpret_cast<Word*>(cell);
    Word seen = *const_cast<volatile Word*>(word);
    for (;;) {
      const Word next = cast_bits<Word>(combine(op, cast_bits<T>(seen), value));
      if (next == seen) return;  // idempotent operations are mostly done here
      const Word was = atomicCAS(word, seen, next);
      if (was == seen) return;
      seen = was;
    }
  }
}

/// Does the hardware's addition to a cell in global memory give what combine() gives, whatever the cell holds? For
/// float it takes subnormal numbers, below 2^-126, for zeros: what it reads, and what it would store (PTX ISA,
/// atom.add). From 2^-101 on neither can be told. A subnormal cell is less than half the distance of a float near the
/// value to the next one (2^-125 below 2^-101 itself), so that the sum is rounded to the value anyway. And a sum that
/// is not zero is a multiple of 2^-125: the value is one of 2^-124, and so is, or of 2^-125, a cell that nearly cancels
/// it.
__device__ __forceinline__ bool adds_natively(float value) {
  constexpr unsigned kLeast = (127u - 101u) << 23;  // the bits of 2^-101
  return (__float_as_uint(value) & 0x7fffffffu) >= kLeast;
}
__device__ __forceinline__ bool adds_natively(double) { return true; }

/// Where cells lie. In shared memory the hardware adds as combine() does.
enum class CellsIn : std::uint8_t { kGlobal, kShared };

/// *cell += value.
template <CellsIn kWhere, class Real>
__device__ __forceinline__ void add_real(Real* cell, Real value) {
  if (kWhere == CellsIn::kShared || adds_natively(value))
    atomicAdd(cell, value);
  else
    swap_in(cell, Action::kAdd, value);
}

/// cell = combine(cell, value) where the hardware has an instruction for it, at least for most values; false, and
/// nothing done, where not. (A float that it does not add is swapped in by itself, and never with the word around it:
/// atomics of different widths may miss each other.)
template <CellsIn kWhere = CellsIn::kGlobal, class T>
__device__ __forceinline__ bool update_natively(T* cell, Action op, T value) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    if (op == Action::kAdd) {
      add_real<kWhere>(cell, value);
      return true;
    }
  } else if constexpr (std::is_integral_v<T> && sizeof(T) >= 4) {
    using Unsigned = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    using Signed = std::conditional_t<sizeof(T) == 8, long long, int>;
    using Native = std::conditional_t<std::is_signed_v<T>, Signed, Unsigned>;
    auto* bits = reinterpret_cast<Unsigned*>(cell);
    auto* number = reinterpret_cast<Native*>(cell);
    switch (op) {
      case Action::kAdd:
        atomicAdd(bits, static_cast<Unsigned>(value));
        return true;
      case Action::kMin:
        atomicMin(number, static_cast<Native>(value));
        return true;
      case Action::kMax:
        atomicMax(number, static_cast<Native>(value));
        return true;
      case Action::kBitAnd:
        atomicAnd(bits, static_cast<Unsigned>(value));
        return true;
      case Action::kBitOr:
        atomicOr(bits, static_cast<Unsigned>(value));
        return true;
      case Action::kBitXor:
        atomicXor(bits, static_cast<Unsigned>(value));
        return true;
      default:
        break;
    }
  } else if constexpr (std::is_same_v<T, Complex<double>> || std::is_same_v<T, Complex<float>>) {
    if (op == Action::kAdd) {
      add_real<kWhere>(&cell->real, value.real);
      add_real<kWhere>(&cell->imag, value.imag);
      return true;
    }
  }
  return false;
}

template <class T>
__device__ __forceinline__ void update(T* cell, Action op, T value) {
  if (!update_natively(cell, op, value)) swap_in(cell, op, value);
}

/// A warp's, in shared memory.
struct PeerMarks {
  unsigned lanes[64];
};

/// Do some lanes have equal indices? The same answer in all lanes, and at times false where few do: for a caller to
/// whom combine_peers() is worth its time only where many do. index < 0: as there.
__device__ __forceinline__ bool have_peers(std::int64_t index, PeerMarks& marks) {
  const unsigned lane = threadIdx.x % 32;
  unsigned& mark = marks.lanes[static_cast<std::uint64_t>(index) * detail::kHashWhiten >> 58];
  if (index >= 0) atomicExch(&mark, lane);
  __syncwarp();
  const unsigned last = index >= 0 ? mark : lane;
  return __any_sync(kAllLanes, __shfl_sync(kAllLanes, index, last) == index && last != lane);
}

/// Combines the values of lanes with equal indices into the lowest of them, in a logarithmic number of steps; true in
/// that lane. index < 0: the lane has no value.
template <class T, class Combine>
__device__ __forceinline__ bool combine_peers(std::int64_t index, T& value, Combine combine) {
  const int lane = threadIdx.x % 32;
  unsigned peers = __match_any_sync(kAllLanes, static_cast<unsigned long long>(index));
  const bool leads = index >= 0 && __ffs(peers) - 1 == lane;
  if (index < 0) peers = 0;
  int rank = __popc(peers & ((1u << lane) - 1));  // among the peers
  peers &= ~1u << lane;                           // those above
  while (__any_sync(kAllLanes, peers != 0)) {
    const int next = __ffs(peers);
    const T other = shuffle_words(value, next == 0 ? lane : next - 1);
    if (next != 0) value = combine(value, other);
    const bool merged = (rank & 1) != 0;
    peers &= ~__ballot_sync(kAllLanes, merged);
    rank >>= 1;
  }
  return leads;
}

template <class T, class Word>
__device__ __forceinline__ T element_of_word(Word word) {
  static_assert(sizeof(T) <= sizeof(Word));
  T element;
  memcpy(&element, &word, sizeof(T));
  return element;
}

template <class T, class Word>
__device__ __forceinline__ Word combine_as(Action op, Word a, Word b) {
  if constexpr (sizeof(T) <= sizeof(Word)) {
    const T result = combine(op, element_of_word<T>(a), element_of_word<T>(b));
    Word word = 0;
    memcpy(&word, &result, sizeof(T));
    return word;
  } else {
    return a;
  }
}

/// Integers as words: the low bits of what those come to are what narrower ones do.
template <class Word>
__device__ __forceinline__ Word combine_integers(Action op, DType dtype, Word a, Word b) {
  using Signed = std::make_signed_t<Word>;
  static_assert(static_cast<int>(DType::kUInt8) == static_cast<int>(DType::kInt64) + 1);
  const bool is_signed = dtype < DType::kUInt8;
  const int bits = 8 << (static_cast<int>(dtype) - static_cast<int>(is_signed ? DType::kInt8 : DType::kUInt8));
  const int above = 8 * static_cast<int>(sizeof(Word)) - bits;
  if (above < 0) return a;  // no slot has room for one
  const auto extended = [&](Word word) { return static_cast<Signed>(word << above) >> above; };
  const auto low_bits = [&](Word word) { return word << above >> above; };
  const Word word =
      is_signed ? static_cast<Word>(combine(op, extended(a), extended(b))) : combine(op, low_bits(a), low_bits(b));
  return low_bits(word);
}

/// Not inlined: the many cases of this are the rare ones of its callers.
template <class Word>
__device__ __noinline__ Word combine_words(Action op, DType dtype, Word a, Word b) {
  switch (dtype) {
    case DType::kBool:
      return combine_as<Bool>(op, a, b);
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return combine_integers(op, dtype, a, b);
    case DType::kFloat16:
      return combine_as<Float16>(op, a, b);
    case DType::kBFloat16:
      return combine_as<BFloat16>(op, a, b);
    case DType::kFloat32:
      return combine_as<float>(op, a, b);
    case DType::kFloat64:
      return combine_as<double>(op, a, b);
    case DType::kComplex64:
      return combine_as<Complex<float>>(op, a, b);
    case DType::kComplex128:
      break;  // no slot has room for one
  }
  return a;
}

/// The operation of one batch on values that lie in the low bytes of words, as those beside their keys do. The dtype is
/// told apart at run time: kernels that move and hash keys besides need not exist for each.
template <class Word>
struct WordReducer {
  Action op;
  DType dtype;
  Word identity;

  __device__ __forceinline__ Word combine(Word a, Word b) const {
    const bool is_whole_integer = sizeof(Word) == 8 ? dtype == DType::kInt64 || dtype == DType::kUInt64
                                                    : dtype == DType::kInt32 || dtype == DType::kUInt32;
    return is_whole_integer && op == Action::kAdd ? a + b : combine_words(op, dtype, a, b);
  }

  /// *cell = combine(*cell, value), atomically.
  template <CellsIn kWhere = CellsIn::kGlobal>
  __device__ __forceinline__ void update(Word* cell, Word value) const {
    if (!update_natively<kWhere>(cell, value)) swap(cell, value);
  }

 private:
  template <CellsIn kWhere>
  __device__ __forceinline__ bool update_natively(Word* cell, Word value) const {
    switch (dtype) {
      case DType::kInt32:
        return update_as<kWhere, std::int32_t>(cell, value);
      case DType::kUInt32:
        return update_as<kWhere, std::uint32_t>(cell, value);
      case DType::kFloat32:
        return update_as<kWhere, float>(cell, value);
      case DType::kInt64:
        return update_as<kWhere, std::int64_t>(cell, value);
      case DType::kUInt64:
        return update_as<kWhere, std::uint64_t>(cell, value);
      case DType::kFloat64:
        return update_as<kWhere, double>(cell, value);
      default:
        return false;
    }
  }

  template <CellsIn kWhere, class T>
  __device__ __forceinline__ bool update_as(Word* cell, Word value) const {
    if constexpr (sizeof(T) <= sizeof(Word))
      return cuda::update_natively<kWhere>(reinterpret_cast<T*>(cell), op, element_of_word<T>(value));
    else
      return false;
  }

  __device__ __forceinline__ void swap(Word* cell, Word value) const {
    using Native = std::conditional_t<sizeof(Word) == 8, unsigned long long, unsigned>;
    auto* const native = reinterpret_cast<Native*>(cell);
    Native seen = *const_cast<volatile Native*>(native);
    for (;;) {
      const Native next = combine(static_cast<Word>(seen), value);
      if (next == seen) return;
      const Native was = atomicCAS(native, seen, next);
      if (was == seen) return;
      seen = was;
    }
  }
};

}  // namespace gpuhash::cuda
