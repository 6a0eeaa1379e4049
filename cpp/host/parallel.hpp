#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <gpuhash/error.hpp>
#include "core/fault_injection.hpp"
#include "core/interruption.hpp"
#include "core/thread_pool.hpp"

/// How the host shares work out among threads: parts of an array, pieces between which an operation may be interrupted,
/// and scratch memory.
namespace gpuhash::host {

/// Fewer keys than these per thread are not worth waking it for.
inline constexpr std::int64_t kKeysPerReader = 1 << 14;

inline int reader_parts(std::int64_t count) {
  if (count < 2 * kKeysPerReader) return 1;
  return static_cast<int>(std::min<std::int64_t>(thread_count(), count / kKeysPerReader));
}

/// Threads that deal items out to each other, at most: each has a list from every other.
inline constexpr std::int64_t kMostWriters = 64;

/// Where part p of `parts` begins.
inline std::int64_t part_begin(std::int64_t count, int part, int parts) {
  return static_cast<std::int64_t>(static_cast<__int128>(count) * part / parts);
}

/// Before scratch memory is asked for: there may be none, if a test wants it so.
inline void scratch_may_fail() {
  if (fails_here(Fault::kScratch)) throw std::bad_alloc();
}

/// allocate(n), which gives memory for n items of T.
template <class T, class Allocate>
auto scratch_by(Allocate allocate, std::int64_t count) {
  try {
    scratch_may_fail();
    return allocate(static_cast<std::size_t>(count));
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError("could not allocate " + std::to_string(count * static_cast<std::int64_t>(sizeof(T))) +
                           " bytes of scratch memory");
  }
}

/// Zeroed scratch memory.
template <class T>
std::vector<T> scratch(std::int64_t count) {
  return scratch_by<T>([](std::size_t n) { return std::vector<T>(n); }, count);
}

template <class T>
std::unique_ptr<T[]> uninitialised(std::int64_t count) {
  return scratch_by<T>([](std::size_t n) { return std::make_unique_for_overwrite<T[]>(n); }, count);
}

/// Calls body(part, begin, end) for every part of [0, count).
template <class Body>
void for_each_part(std::int64_t count, int parts, Body body) {
  if (parts == 1) return body(0, std::int64_t{0}, count);
  parallel_for(parts,
               [&](int part) { body(part, part_begin(count, part, parts), part_begin(count, part + 1, parts)); });
}

/// Calls body(begin, end) for pieces of [begin, end), in order; between them the operation may be interrupted.
template <class Body>
void in_pieces(std::int64_t begin, std::int64_t end, std::int64_t piece, Body body) {
  for (; begin < end; begin += piece) {
    interruption_point();
    body(begin, std::min(end, begin + piece));
  }
}

/// Keys between two points at which an operation may be interrupted: some milliseconds.
inline constexpr std::int64_t kKeysPerPiece = std::int64_t{1} << 18;
/// Buckets likewise.
inline constexpr std::int64_t kBucketsPerPiece = std::int64_t{1} << 17;

}  // namespace gpuhash::host
