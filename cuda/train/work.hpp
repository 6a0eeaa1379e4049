#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <gpuhash/device_context.hpp>
#include "cuda/sorted_batch.hpp"
#include "shared/optimizer_step.hpp"
#include "table/row_optimizer.hpp"

/// Training rows. The batch's positions are sorted by row. A *group* of threads, as many as a row has vectors of four
/// elements for, up to a warp, takes a *chunk* of them, sums up the gradients of each row, and trains the row as soon
/// as it has the last one: so gradients are read once, in whole rows, and nothing is stored between sum and step. Only
/// a row whose positions lie in several chunks has its parts stored, and added up by a second kernel. A hot row has
/// many chunks: where one row has all of a *span* of them, their parts become one before.
///
/// No sum depends on timing.
namespace gpuhash::cuda {

inline constexpr unsigned kTrainBlock = 256;
inline constexpr int kVector = 4;                                           // elements
inline constexpr std::int64_t kChunk = 64;                                  // positions
inline constexpr std::int64_t kSpan = 32;                                   // chunks
inline constexpr int kMostVectors = 8;                                      // of a thread
inline constexpr std::int64_t kMostElements = 32 * kVector * kMostVectors;  // that a group has at a time
static_assert(kMostElements == kMostOfRow);

/// A column in the rows of storage.
struct TrainedColumn {
  std::byte* first;
  std::int64_t stride;  // bytes
  bool whole;           // vectors of four elements can be loaded
  DType dtype;

  template <class T>
  GPUHASH_HD T* of(std::int64_t row) const {
    return reinterpret_cast<T*>(first + row * stride);
  }
};

struct Trained {
  TrainedColumn weights;
  TrainedColumn states[2];
  std::int64_t elements;
  StepNumbers numbers;
  OptimizerStep step;
};

struct TrainGradients {
  Gradients gradients;
  bool whole;
};

/// How the elements of a row are dealt out to a group.
struct GroupShape {
  int lanes = 1;        // a power of two
  std::int64_t padded;  // elements of a part: those of a row, and what makes the last vectors whole

  explicit GroupShape(std::int64_t elements) : padded((elements + kVector - 1) / kVector * kVector) {
    while (lanes < 32 && lanes * kVector < elements) lanes *= 2;
  }
  /// Of the elements that a group has at a time.
  unsigned tiles() const { return static_cast<unsigned>((padded + kMostElements - 1) / kMostElements); }
  /// Calls run(vectors of a thread).
  template <class Run>
  void with_vectors(Run run) const {
    const std::int64_t of_thread = (padded + lanes * kVector - 1) / (lanes * kVector);
    if (of_thread <= 1)
      run(std::integral_constant<int, 1>());
    else if (of_thread <= 2)
      run(std::integral_constant<int, 2>());
    else
      run(std::integral_constant<int, kMostVectors>());
  }
};

/// Sums over a chunk's positions of rows that have positions in other chunks as well.
struct PartialSums {
  float* heads;  // [chunks, padded]: of the row that has positions in the chunk before, too
  float* tails;  // [chunks, padded]: of the row that begins in this chunk and goes on in the next one
  float* spans;  // [spans, padded]: of a row that has all of a span's chunks, and positions before
  std::int64_t padded;
};

/// A sorted batch, as the kernels of one number of vectors per thread work it off.
struct TrainWork {
  SortedBatch batch;
  TrainGradients given;
  Trained trained;
  PartialSums parts;
  std::int64_t chunks;
  std::int64_t spans;
  int lanes;
  unsigned tiles;  // of kMostElements elements
};
struct PoolWork {
  TrainedColumn column;
  PoolOrder order;
  std::int64_t capacity;  // rows
  bool whole;             // vectors of what is given and of the fallback can be stored and loaded
  int lanes;
  unsigned tiles;
};

/// Defined for the numbers of vectors that GroupShape chooses from, in one source file each, which compile side by
/// side.
template <int kVectors>
void launch_training(const TrainWork& work, Stream stream);
template <int kVectors>
void launch_pooling(const PoolWork& work, Stream stream);

}  // namespace gpuhash::cuda
