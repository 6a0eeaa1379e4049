// Measures hash maps of other CUDA libraries as benchmarks/gpu/tables.py measures gpuhash, for peers_h200.csv: the same
// keys, unique and random, looked up in another order than inserted; results checked first; times between two events
// on the device, the median of seven runs after two more. A program for one library includes this header, derives from
// Map, lists its configurations and calls benchmark(). Not part of gpuhash.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device.cuh"

namespace peer_maps {

using device::check;
using device::DeviceArray;

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Calls row(i) for every i in [0, n).
template <class Row>
__global__ void for_each_row(std::int64_t n, Row row) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) row(i);
}

template <class Row>
void launch_rows(std::int64_t n, const Stream& stream, Row row) {
  for_each_row<<<static_cast<unsigned>(std::clamp<std::int64_t>((n + 255) / 256, 1, 4096)), 256, 0, stream.get()>>>(
      n, row);
  check(cudaGetLastError(), "launching for_each_row");
}

/// Keeps the device busy while the host enqueues, so that the host's part of a call is not in its time.
static __global__ void spin(std::int64_t cycles) {
  const std::int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

/// Median seconds of the runs after the warm-ups; prepare() comes before each, outside of the time.
template <class Prepare, class Run>
double median(device::Stopwatch& watch, int warm_ups, int runs, const Stream& stream, Prepare prepare, Run run) {
  constexpr std::int64_t kBusyCycles = 2'000'000;  // about a millisecond
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + runs; ++i) {
    prepare();
    spin<<<1, 1, 0, stream.get()>>>(kBusyCycles);
    const double taken = watch.seconds(stream.get(), run);
    if (i >= warm_ups) seconds.push_back(taken);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Unique keys that look random: a bijection of the numbers of a Word's width, the finisher of splitmix64 or that of
/// MurmurHash3 as in benchmarks/gpu/data.py.
template <class Word>
__host__ __device__ constexpr Word key_of(Word number) {
  if constexpr (sizeof(Word) == 8) {
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9u;
    number = (number ^ number >> 27) * 0x94D049BB133111EBu;
    return number ^ number >> 31;
  } else {
    number = (number ^ number >> 16) * 0x85EBCA6Bu;
    number = (number ^ number >> 13) * 0xC2B2AE35u;
    return number ^ number >> 16;
  }
}

/// What marks empty and erased slots: keys of the two largest numbers, of which no key is made that is measured.
template <class Word>
inline constexpr Word kEmptyKey = key_of(std::numeric_limits<Word>::max());
template <class Word>
inline constexpr Word kErasedKey = key_of<Word>(std::numeric_limits<Word>::max() - 1);
/// The value of empty slots, which a lookup gives for absent keys.
template <class Word>
inline constexpr Word kEmptyValue = 0;

/// The value that is inserted with a key. Values and changes are odd and leave two bits free, so that neither they
/// nor their sums are kEmptyValue.
template <class Word>
__host__ __device__ constexpr Word value_of(Word key) {
  return (key ^ 0x5555u) >> 2 | 1;
}

/// What insert_or_assign assigns and insert_or_apply adds.
template <class Word>
__host__ __device__ constexpr Word change_of(Word key) {
  return (key * 0x9E3779B1u) >> 2 | 1;
}

/// A bijection of the numbers below 2^bits, whose order looks random: that of the lookups.
__host__ __device__ constexpr std::uint64_t permuted(std::uint64_t number, int bits) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (const std::uint64_t odd : {0x9E3779B97F4A7C15u, 0xD1B54A32D192ED03u, 0x8CB92BA72F3D8DD7u}) {
    number = (number * odd + (odd >> 40)) & mask;
    number ^= number >> (bits + 1) / 2;
  }
  return number;
}

enum class Operation { kFindPresent, kFindAbsent, kInsert, kInsertOrAssign, kInsertOrApply, kErase };

inline constexpr std::array kOperations = {Operation::kFindPresent,    Operation::kFindAbsent,    Operation::kInsert,
                                           Operation::kInsertOrAssign, Operation::kInsertOrApply, Operation::kErase};

inline const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kFindPresent:
      return "find present";
    case Operation::kFindAbsent:
      return "find absent";
    case Operation::kInsert:
      return "insert";
    case Operation::kInsertOrAssign:
      return "insert_or_assign";
    case Operation::kInsertOrApply:
      return "insert_or_apply add";
    case Operation::kErase:
      return "erase";
  }
  throw std::logic_error("unknown operation");
}

/// A map of fixed capacity in one configuration. Operations are enqueued on the stream that it was made with; all
/// arrays are on the device.
template <class Pair>
class Map {
 public:
  using Word = typename Pair::first_type;

  virtual ~Map() = default;
  virtual std::int64_t slots() const = 0;
  virtual void clear() = 0;
  virtual void insert(const Pair* pairs, std::int64_t n) = 0;
  /// Writes kEmptyValue for absent keys.
  virtual void find(const Word* keys, std::int64_t n, Word* values) = 0;

  /// Which of the operations below there are.
  virtual bool has(Operation operation) const = 0;
  virtual void insert_or_assign(const Pair*, std::int64_t) { throw std::logic_error("no insert_or_assign"); }
  /// Adds to the values that are there.
  virtual void insert_or_apply(const Pair*, std::int64_t) { throw std::logic_error("no insert_or_apply"); }
  virtual void erase(const Word*, std::int64_t) { throw std::logic_error("no erase"); }
};

template <class Pair>
struct Configuration {
  std::string who;  // without commas, as it is a field of the CSV
  std::function<std::unique_ptr<Map<Pair>>(std::int64_t slots, cudaStream_t stream)> make;
};

/// Keys and values of one number of pairs, a power of two.
template <class Pair>
struct Data {
  using Word = typename Pair::first_type;

  explicit Data(int bits, const Stream& stream)
      : n(std::int64_t{1} << bits), pairs(n), lookups(n), absent(n), changes(n), found(n) {
    fill(bits, stream);
    stream.wait();
  }

  void fill(int bits, const Stream& stream) {
    launch_rows(n, stream,
                [bits, count = n, pairs = pairs.get(), lookups = lookups.get(), absent = absent.get(),
                 changes = changes.get()] __device__(std::int64_t i) {
                  const Word key = key_of(static_cast<Word>(i));
                  const Word lookup = key_of(static_cast<Word>(permuted(static_cast<std::uint64_t>(i), bits)));
                  pairs[i] = Pair{key, value_of(key)};
                  lookups[i] = lookup;
                  absent[i] = key_of(static_cast<Word>(count + i));
                  changes[i] = Pair{lookup, change_of(lookup)};
                });
  }

  std::int64_t n;
  DeviceArray<Pair> pairs;    // [n], in the order of insertion
  DeviceArray<Word> lookups;  // [n], the same keys in another order
  DeviceArray<Word> absent;   // [n]
  DeviceArray<Pair> changes;  // [n], keys in the order of lookups
  DeviceArray<Word> found;    // [n], what a lookup wrote
};

enum class Expected { kNothing, kValue, kChange, kSum };

/// How many of the found values are not what they should be.
template <class Word>
std::int64_t count_wrong(const Word* keys, const Word* found, std::int64_t n, Expected expected, const Stream& stream) {
  const DeviceArray<unsigned long long> wrong(1);
  check(cudaMemsetAsync(wrong.get(), 0, sizeof(unsigned long long), stream.get()), "cudaMemsetAsync");
  launch_rows(n, stream, [keys, found, expected, counter = wrong.get()] __device__(std::int64_t i) {
    const Word value = value_of(keys[i]), change = change_of(keys[i]);
    const Word right = expected == Expected::kNothing  ? kEmptyValue<Word>
                       : expected == Expected::kValue  ? value
                       : expected == Expected::kChange ? change
                                                       : static_cast<Word>(value + change);
    if (found[i] != right) atomicAdd(counter, 1ull);
  });
  unsigned long long count = 0;
  check(cudaMemcpyAsync(&count, wrong.get(), sizeof(count), cudaMemcpyDeviceToHost, stream.get()), "cudaMemcpyAsync");
  stream.wait();
  return static_cast<std::int64_t>(count);
}

/// The operations on one map.
template <class Pair>
class Bench {
 public:
  using Word = typename Pair::first_type;

  Bench(const Data<Pair>& data, Map<Pair>& map, const Stream& stream) : data_(data), map_(map), stream_(stream) {}

  /// Leaves the first pairs in the map. An emptied map has no erased slots.
  void fill(std::int64_t pairs) {
    map_.clear();
    map_.insert(data_.pairs.get(), pairs);
    full_ = pairs == data_.n;
  }

  /// Leaves all keys in the map, with whatever values.
  void fill_up() {
    if (!full_) fill(data_.n);
  }

  /// Throws where the operation gives wrong results: nothing is timed that does not work.
  void check(Operation operation) {
    if (operation == Operation::kFindAbsent) {
      fill_up();
    } else {
      fill(data_.n);
    }
    switch (operation) {
      case Operation::kFindPresent:
      case Operation::kInsert:
        return expect(data_.lookups.get(), Expected::kValue);
      case Operation::kFindAbsent:
        return expect(data_.absent.get(), Expected::kNothing);
      case Operation::kInsertOrAssign:
        map_.insert_or_assign(data_.changes.get(), data_.n);
        return expect(data_.lookups.get(), Expected::kChange);
      case Operation::kInsertOrApply:
        map_.insert_or_apply(data_.changes.get(), data_.n);
        return expect(data_.lookups.get(), Expected::kSum);
      case Operation::kErase:
        full_ = false;
        map_.erase(data_.lookups.get(), data_.n);
        return expect(data_.lookups.get(), Expected::kNothing);
    }
  }

  /// Median seconds. Small batches take other keys each time, so that they meet no warm cache; insertions are of the
  /// last keys up to the load, and for other operations the map is full.
  double seconds(Operation operation, std::int64_t batch, int warm_ups, int runs) {
    fill_up();
    std::int64_t at = -batch;
    const auto next = [&] { return at = at + 2 * batch > data_.n ? 0 : at + batch; };
    const auto nothing = [] {};
    const auto time = [&](auto prepare, auto run) { return median(watch_, warm_ups, runs, stream_, prepare, run); };
    switch (operation) {
      case Operation::kFindPresent:
        return time(nothing, [&] { map_.find(data_.lookups.get() + next(), batch, data_.found.get()); });
      case Operation::kFindAbsent:
        return time(nothing, [&] { map_.find(data_.absent.get() + next(), batch, data_.found.get()); });
      case Operation::kInsert: {
        const std::int64_t rest = data_.n - batch;
        return time([&] { fill(rest); }, [&] { map_.insert(data_.pairs.get() + rest, batch); });
      }
      case Operation::kInsertOrAssign:
        return time(nothing, [&] { map_.insert_or_assign(data_.changes.get() + next(), batch); });
      case Operation::kInsertOrApply:
        return time(nothing, [&] { map_.insert_or_apply(data_.changes.get() + next(), batch); });
      case Operation::kErase: {
        // Of small batches so many between two refills that one part in 64 of the keys is gone.
        const std::int64_t allowed = std::max<std::int64_t>(1, data_.n / 64 / batch);
        std::int64_t done = 0;
        const auto refill = [&] {
          if (done++ % allowed == 0) fill(data_.n);
        };
        return time(refill, [&] {
          full_ = false;
          map_.erase(data_.lookups.get() + next(), batch);
        });
      }
    }
    throw std::logic_error("unknown operation");
  }

 private:
  void expect(const Word* keys, Expected expected) {
    // A lookup that writes nothing is to be noticed: no value is all ones.
    device::check(cudaMemsetAsync(data_.found.get(), 0xff, data_.n * sizeof(Word), stream_.get()), "cudaMemsetAsync");
    map_.find(keys, data_.n, data_.found.get());
    device::check(cudaGetLastError(), "launching an operation");
    const std::int64_t wrong = count_wrong(keys, data_.found.get(), data_.n, expected, stream_);
    if (wrong == 0) return;
    full_ = false;  // who knows
    throw std::runtime_error("wrong results for " + std::to_string(wrong) + " keys");
  }

  const Data<Pair>& data_;
  Map<Pair>& map_;
  const Stream& stream_;
  device::Stopwatch watch_;
  bool full_ = false;  // all keys are in the map, no slot is erased
};

struct Suite {
  const char* choice;  // its name on the command line
  const char* name;    // and in the CSV
  int bits;            // 2^bits pairs
  std::int64_t batch;
  std::vector<double> loads;
};

/// What one run of the program was asked for, and how it goes.
struct Session {
  std::vector<std::string> chosen;  // suites; all where none is named
  double allowed_seconds = 80;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  bool failed = false;

  bool wants(const Suite& suite) const {
    return chosen.empty() || std::find(chosen.begin(), chosen.end(), suite.choice) != chosen.end();
  }
  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
  bool late() const { return elapsed() > allowed_seconds; }
};

/// One suite on one layout at one load: tries each configuration, then measures for each operation the best one.
template <class Pair>
class Contest {
 public:
  using Word = typename Pair::first_type;

  Contest(Session& session, const Suite& suite, double load, const std::vector<Configuration<Pair>>& configurations,
          const Data<Pair>& data, const Stream& stream)
      : session_(session),
        suite_(suite),
        load_(load),
        configurations_(configurations),
        data_(data),
        stream_(stream),
        best_(kOperations.size()) {}

  void run() {
    for (const Configuration<Pair>& configuration : configurations_) {
      attempt(configuration, "all operations", [&] { try_out(configuration); });
    }
    for (const Configuration<Pair>& configuration : configurations_) {
      if (wins_any(configuration)) attempt(configuration, "its best", [&] { measure_wins(configuration); });
    }
  }

 private:
  struct Best {
    const Configuration<Pair>* configuration = nullptr;
    double seconds = std::numeric_limits<double>::infinity();
  };

  /// What fails is written down with its cause, and the rest goes on.
  template <class Action>
  void attempt(const Configuration<Pair>& configuration, const char* what, Action action) {
    const auto complain = [&](const char* cause) {
      std::printf("# not measured: %s, %s, %d-byte keys at load %g, %s: %s\n", configuration.who.c_str(), suite_.name,
                  static_cast<int>(sizeof(Word)), load_, what, cause);
      session_.failed = true;
    };
    if (session_.late()) return complain("the allowed time is over");
    try {
      action();
    } catch (const std::exception& error) {
      complain(error.what());
    }
  }

  std::unique_ptr<Map<Pair>> make(const Configuration<Pair>& configuration) const {
    return configuration.make(std::llround(std::ceil(static_cast<double>(data_.n) / load_)), stream_.get());
  }

  double load_of(const Map<Pair>& map) const { return static_cast<double>(data_.n) / static_cast<double>(map.slots()); }

  /// Checking is the warm-up. Maps round their number of slots up, some by far: they are left out, as they would be
  /// measured at another load.
  void try_out(const Configuration<Pair>& configuration) {
    constexpr double kLoadTolerance = 0.012;
    const auto map = make(configuration);
    if (std::abs(load_of(*map) - load_) > kLoadTolerance) {
      std::printf("# left out: %s, %s, %d-byte keys at load %g, as it has %lld slots, which is load %.3f\n",
                  configuration.who.c_str(), suite_.name, static_cast<int>(sizeof(Word)), load_,
                  static_cast<long long>(map->slots()), load_of(*map));
      return;
    }
    Bench<Pair> bench(data_, *map, stream_);
    const int runs = suite_.batch > (1 << 24) ? 1 : 3;
    for (std::size_t i = 0; i < kOperations.size(); ++i) {
      if (!map->has(kOperations[i])) continue;
      attempt(configuration, name_of(kOperations[i]), [&] {
        bench.check(kOperations[i]);
        const double seconds = bench.seconds(kOperations[i], suite_.batch, 0, runs);
        print("# trial: ", kOperations[i], configuration, seconds);
        if (seconds < best_[i].seconds) best_[i] = {&configuration, seconds};
      });
    }
  }

  bool wins_any(const Configuration<Pair>& configuration) const {
    return std::any_of(best_.begin(), best_.end(),
                       [&](const Best& best) { return best.configuration == &configuration; });
  }

  void measure_wins(const Configuration<Pair>& configuration) {
    const auto map = make(configuration);
    Bench<Pair> bench(data_, *map, stream_);
    for (std::size_t i = 0; i < kOperations.size(); ++i) {
      if (best_[i].configuration != &configuration) continue;
      attempt(configuration, name_of(kOperations[i]),
              [&] { print("", kOperations[i], configuration, bench.seconds(kOperations[i], suite_.batch, 2, 7)); });
    }
  }

  /// A row of the CSV.
  void print(const char* prefix, Operation operation, const Configuration<Pair>& configuration, double seconds) const {
    const int bytes = static_cast<int>(sizeof(Word));
    std::printf("%s%s,%s,%d + %d B,%lld,%lld,%g,%s,%.2f\n", prefix, suite_.name, name_of(operation), bytes, bytes,
                static_cast<long long>(data_.n), static_cast<long long>(suite_.batch), load_, configuration.who.c_str(),
                static_cast<double>(suite_.batch) / seconds * 1e-9);
  }

  Session& session_;
  const Suite& suite_;
  double load_;
  const std::vector<Configuration<Pair>>& configurations_;
  const Data<Pair>& data_;
  const Stream& stream_;
  std::vector<Best> best_;  // by operation, of the trials
};

/// All suites on one layout; those of one size come one after the other and share their data.
template <class Pair>
void run_suites(Session& session, const std::vector<Suite>& suites,
                const std::vector<Configuration<Pair>>& configurations) {
  const Stream stream;
  std::unique_ptr<Data<Pair>> data;
  for (const Suite& suite : suites) {
    if (!session.wants(suite)) continue;
    if (data == nullptr || data->n != std::int64_t{1} << suite.bits) {
      data.reset();  // first, as there may not be room for both
      data = std::make_unique<Data<Pair>>(suite.bits, stream);
    }
    for (const double load : suite.loads) {
      if (session.late()) {
        std::printf("# not measured: %s, %d-byte keys at load %g, as the allowed time is over\n", suite.name,
                    static_cast<int>(sizeof(typename Pair::first_type)), load);
        session.failed = true;
        continue;
      }
      Contest<Pair>(session, suite, load, configurations, *data, stream).run();
    }
  }
}

inline constexpr const char* kUsage =
    "usage: %s [--seconds N] [cache] [batches] [large]\n"
    "Tries all configurations, with a comment line '# trial: ROW' for each, and measures the best for each operation.\n"
    "Rows are those of peers_h200.csv.\n"
    "  cache     2^20 pairs, inside of the L2 cache\n"
    "  batches   batches of 2^20 on 2^27 pairs, 8 + 8 bytes\n"
    "  large     one batch of 2^27 pairs; takes 12 GiB of the GPU's memory, as batches does\n"
    "All of them, if none is named. After N seconds (by default 80) nothing new is begun.\n"
    "Exit status: 0, 1 where something could not be measured, 2 for wrong arguments.\n";

/// The arguments; none where they are wrong.
inline std::optional<Session> parse(int argc, char** argv, const std::vector<Suite>& suites) {
  Session session;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds") {
      if (++i == argc) return std::nullopt;
      char* end = nullptr;
      session.allowed_seconds = std::strtod(argv[i], &end);
      if (end == argv[i] || *end != '\0' || !(session.allowed_seconds > 0)) return std::nullopt;
    } else if (std::any_of(suites.begin(), suites.end(), [&](const Suite& s) { return argument == s.choice; })) {
      session.chosen.push_back(argument);
    } else {
      return std::nullopt;
    }
  }
  return session;
}

/// The main program. The library's name and versions go into a comment line.
template <class Wide, class Narrow>
int benchmark(int argc, char** argv, const std::string& library, const std::vector<Configuration<Wide>>& wide,
              const std::vector<Configuration<Narrow>>& narrow) {
  const std::vector<double> loads = {0.5, 0.8, 0.9, 0.95};
  const Suite large = {"large", "table", 27, 1 << 27, loads}, batches = {"batches", "batches", 27, 1 << 20, loads},
              cache = {"cache", "cache", 20, 1 << 20, loads};
  const std::vector<Suite> suites = {cache, large, batches};

  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    std::printf(kUsage, argv[0]);
    return 0;
  }
  std::optional<Session> session = parse(argc, argv, suites);
  if (!session) {
    std::fprintf(stderr, kUsage, argv[0]);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // rows are not lost where the program is stopped
  try {
    int device = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    std::printf("# %s, on %s\n", library.c_str(), properties.name);
    std::printf("suite,operation,layout,pairs,batch,load,who,giga_per_second\n");
    run_suites(*session, suites, wide);
    run_suites(*session, {cache, large}, narrow);
    std::printf("# %.1f seconds\n", session->elapsed());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return session->failed ? 1 : 0;
}

}  // namespace peer_maps
