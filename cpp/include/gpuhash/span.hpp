#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace gpuhash {

/// Items that lie one behind the other, and that somebody else keeps: std::span of C++20, for headers in C++17.
template <class T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, std::size_t size) : data_(data), size_(size) {}
  template <std::size_t kCount>
  constexpr Span(T (&items)[kCount]) : data_(items), size_(kCount) {}  // NOLINT(google-explicit-constructor)
  /// Of a std::vector and its like.
  template <class Items,
            class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<const Items&>().data()), T*>>>
  constexpr Span(const Items& items)
      : data_(items.data()), size_(items.size()) {}  // NOLINT(google-explicit-constructor)

  constexpr T* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }
  constexpr T& operator[](std::size_t i) const { return data_[i]; }
  constexpr T& front() const { return data_[0]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gpuhash
