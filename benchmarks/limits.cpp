// What the host's memory allows to anything that looks up random places. Built by limits.py; not part of gpuhash.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

struct alignas(64) Line {
  std::uint64_t words[8];
};

/// Zeroed lines on huge pages where the system gives them, as a table would have.
class Lines {
 public:
  explicit Lines(std::uint64_t count) : bytes_(count * sizeof(Line)) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return;
#ifdef MADV_HUGEPAGE
    madvise(data, bytes_, MADV_HUGEPAGE);
#endif
    data_ = static_cast<Line*>(data);
    for (std::uint64_t i = 0; i < count; ++i)
      for (std::uint64_t& word : data_[i].words) word = i;
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  const Line* get() const { return data_; }

 private:
  std::uint64_t bytes_;
  Line* data_ = nullptr;
};

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t place_of(std::uint64_t key, std::uint64_t count) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(key) * count) >> 64);
}

std::uint64_t sum_of(const Line& line) {
  std::uint64_t sum = 0;
  for (const std::uint64_t word : line.words) sum += word;
  return sum;
}

/// Reads every key's line, prefetched `ahead` keys before, and writes 8 bytes per key.
void load_range(const std::vector<std::uint64_t>& keys, const Line* lines, std::uint64_t count,
                std::vector<std::uint64_t>& out, std::size_t from, std::size_t to, std::size_t ahead) {
  const auto line_of = [&](std::size_t i) { return lines + place_of(keys[i], count); };
  for (std::size_t i = from; i < std::min(to, from + ahead); ++i) __builtin_prefetch(line_of(i));
  for (std::size_t i = from; i < to; ++i) {
    if (i + ahead < to) __builtin_prefetch(line_of(i + ahead));
    out[i] = sum_of(*line_of(i));
  }
}

/// The keys, the array they name lines of, and where the results go.
struct Loads {
  Lines lines;
  std::uint64_t count;
  std::vector<std::uint64_t> keys, out;  // [n]

  Loads(std::uint64_t count, std::size_t n) : lines(count), count(count), keys(n), out(n) {
    for (std::size_t i = 0; i < n; ++i) keys[i] = mix(i + 1);
  }
};

}  // namespace

/// Makes random 64-byte loads over array_bytes ready; null where there is no memory.
extern "C" void* create_loads(std::uint64_t array_bytes, std::int64_t key_count) {
  try {
    auto loads = std::make_unique<Loads>(array_bytes / sizeof(Line), static_cast<std::size_t>(key_count));
    return loads->lines.get() == nullptr ? nullptr : loads.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

extern "C" void destroy_loads(void* handle) { delete static_cast<Loads*>(handle); }

/// Seconds in which thread_count threads together load every key's line once, each with `ahead` in flight. Starting and
/// ending the threads is not in the time.
extern "C" double run_loads(void* handle, int thread_count, std::int64_t ahead) {
  Loads& loads = *static_cast<Loads*>(handle);
  const std::size_t n = loads.keys.size();
  const auto work = [&](int t) {
    const std::size_t count = static_cast<std::size_t>(thread_count);
    load_range(loads.keys, loads.lines.get(), loads.count, loads.out, n * static_cast<std::size_t>(t) / count,
               n * static_cast<std::size_t>(t + 1) / count, static_cast<std::size_t>(ahead));
  };
  std::atomic<int> arrived{0}, done{0};
  std::atomic<bool> go{false};
  const auto wait_until = [](auto condition) {
    while (!condition()) std::this_thread::yield();
  };
  std::vector<std::thread> others;
  for (int t = 1; t < thread_count; ++t)
    others.emplace_back([&, t] {
      ++arrived;
      wait_until([&] { return go.load(); });
      work(t);
      ++done;
    });
  wait_until([&] { return arrived == thread_count - 1; });
  const auto start = std::chrono::steady_clock::now();
  go = true;
  work(0);
  wait_until([&] { return done == thread_count - 1; });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (std::thread& other : others) other.join();
  return seconds.count();
}
