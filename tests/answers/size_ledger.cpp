// SizeLedger against a model that knows the true size, over a device whose counters come when the model wants them.
// For tests/test_table_parts.py.

#include "table/size_ledger.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "answers.hpp"
#include "check.hpp"

namespace {

using gpuhash::Control;
using gpuhash::SizeLedger;
using gpuhash::Stream;

/// What was sent last, once the model says that it has arrived.
class SlowReadback final : public gpuhash::Readback {
 public:
  explicit SlowReadback(const bool& has_arrived) : has_arrived_(has_arrived) {}
  void send(const void* from, std::size_t bytes, Stream) override {
    sent_.resize(bytes);
    std::memcpy(sent_.data(), from, bytes);
  }
  const void* arrived() const override { return has_arrived_ ? sent_.data() : nullptr; }
  const void* wait(Stream) override { return sent_.data(); }

 private:
  std::vector<char> sent_;
  const bool& has_arrived_;
};

/// A GPU of which the ledger uses the readback alone.
class FakeGpu final : public gpuhash::DeviceContext {
 public:
  FakeGpu() : DeviceContext({"fake", 0}, nullptr) {}
  bool is_host() const noexcept override { return false; }
  std::unique_ptr<gpuhash::Readback> make_readback() override {
    ++readbacks;
    return std::make_unique<SlowReadback>(has_arrived);
  }

  void copy(void*, const void*, std::size_t, Stream) override { unused(); }
  void copy_from_host(void*, const void*, std::size_t, Stream) override { unused(); }
  void copy_to_host(void*, const void*, std::size_t, Stream) override { unused(); }
  void fill(void*, std::uint8_t, std::size_t, Stream) override { unused(); }
  void copy_from(void*, DeviceContext&, const void*, std::size_t, Stream) override { unused(); }
  void synchronize(Stream) override { unused(); }
  void synchronize_all() override { unused(); }
  std::unique_ptr<gpuhash::Fence> make_fence() override { unused(); }
  std::uint64_t stream_id(Stream) override { unused(); }
  Stream own_stream() override { unused(); }
  bool is_capturing(Stream) override { unused(); }
  std::shared_ptr<void> make_mailbox(std::size_t) override { unused(); }
  void advance(const gpuhash::ChainStep&, Stream) override { unused(); }
  const gpuhash::Executors& executors() const override { unused(); }

  bool has_arrived = false;
  int readbacks = 0;

 private:
  [[noreturn]] static void unused() { throw std::logic_error("the ledger has no use for this"); }
};

/// The truth, and what can be known of it: an exact size of some time ago, and the batches since.
struct Model {
  struct Known {
    std::int64_t size = 0;
    std::size_t batches = 0;  // that came before
  };

  std::int64_t size = 0;
  std::vector<std::int64_t> batches;  // keys of each insertion
  Known known;
  std::optional<Known> asked;
  std::int64_t peak = 0;
  bool expects_present = false;

  std::int64_t keys_between(std::size_t from, std::size_t to) const {
    std::int64_t keys = 0;
    for (std::size_t i = from; i < to; ++i) keys += batches[i];
    return keys;
  }
  std::int64_t bound() const { return known.size + keys_between(known.batches, batches.size()); }
  void note_peak() { peak = std::max(peak, bound()); }
  void learn(const Known& now) {
    if (const std::int64_t offered = keys_between(known.batches, now.batches); offered != 0)
      expects_present = 2 * (now.size - known.size) < offered;
    known = now;
    note_peak();
  }
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : random_(seed) {}

  void step() {
    switch (below(8)) {
      case 0:
        return look();
      case 1:
        return hear();
      case 2:
        return erase();
      case 3:
        return below(10) == 0 ? rebuild() : insert();
      case 4:
        return below(10) == 0 ? clear() : insert();
      case 5:
        gpu_.has_arrived = true;
        break;
      default:
        insert();
    }
  }

  void check_all() const {
    check(ledger_.bound() == model_.bound(), "bound");
    check(ledger_.bound() >= model_.size, "the bound is one");
    check(ledger_.peak() == model_.peak, "peak");
    check(ledger_.expects_present() == model_.expects_present, "expects_present");
    for (const std::int64_t limit : {model_.bound() + 4, model_.bound() + 5})
      check(ledger_.has_room(5, limit) == (limit == model_.bound() + 5), "has_room");
    check(gpu_.readbacks <= 1, "one readback");
  }

 private:
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }

  void insert() {
    const std::int64_t keys = 1 + below(100);
    ledger_.expect(ledger_.bound() + keys);
    ledger_.offer(keys);
    ledger_.note_change();
    check(!ledger_.is_pristine(), "is_pristine");
    model_.batches.push_back(keys);
    model_.size += below(3) == 0 ? keys : below(keys + 1) / 4;
    model_.note_peak();
    const std::int64_t limit = model_.bound() + 50 + below(200);
    check(ledger_.wants_to_ask(keys, limit) == (!model_.asked && model_.bound() + 2 * keys > limit), "wants_to_ask");
    if (!ledger_.wants_to_ask(keys, limit)) return;
    gpu_.has_arrived = false;
    ledger_.ask(gpu_, counters(), nullptr);
    model_.asked = {model_.size, model_.batches.size()};
  }
  void erase() { model_.size -= below(model_.size + 1) / 2; }
  void look() {
    ledger_.note_size(static_cast<std::int64_t>(ledger_.read(gpu_, counters(), nullptr).size));
    model_.asked.reset();
    model_.learn({model_.size, model_.batches.size()});
  }
  void hear() {
    const bool hears = model_.asked && gpu_.has_arrived;
    check(ledger_.hear([&](const Control& control) { ledger_.note_size(static_cast<std::int64_t>(control.size)); }) ==
              hears,
          "hear");
    if (hears) model_.learn(*std::exchange(model_.asked, std::nullopt));
  }
  void rebuild() {
    ledger_.note_rebuilt(7);
    check(ledger_.fresh_filter_bits() == 7, "fresh_filter_bits");
    model_.asked.reset();
    model_.peak = 0;
    look();
  }
  void clear() {
    ledger_.set_worn(true);
    ledger_.note_cleared();
    check(ledger_.is_pristine() && !ledger_.is_worn() && ledger_.fresh_filter_bits() == 0, "cleared");
    model_ = {};
  }
  const Control* counters() {
    counters_.size = static_cast<std::uint64_t>(model_.size);
    return &counters_;
  }

  std::mt19937_64 random_;
  FakeGpu gpu_;
  SizeLedger ledger_;
  Model model_;
  Control counters_{};
};

/// A graph that inserts may be replayed at any time: no bound is one any more.
void check_captured() {
  FakeGpu gpu;
  SizeLedger ledger;
  Control counters{};
  ledger.expect(10);
  ledger.offer(10);
  ledger.ask(gpu, &counters, nullptr);
  gpu.has_arrived = true;
  ledger.note_captured_insertion();
  check(!ledger.is_sure() && !ledger.has_room(1, 1000), "no room is known");
  check(!ledger.hear([](const Control&) {}), "what was asked for before tells nothing");
  check(!ledger.wants_to_ask(1000, 0), "and is not asked for");
  ledger.retract(3);
  check(ledger.bound() == 10, "all may be in");
  ledger.note_cleared();
  check(!ledger.is_pristine(), "a replay may insert");
}

void check_single_steps() {
  SizeLedger ledger;
  check(ledger.is_pristine() && ledger.is_sure() && ledger.bound() == 0, "new");
  ledger.expect(50);
  ledger.retract(80);
  check(ledger.bound() == 50, "retract() makes no bound larger");
  ledger.retract(20);
  check(ledger.bound() == 20 && ledger.peak() == 50, "retract");
  ledger.note_new(4, 10);
  check(ledger.expects_present(), "most of a batch were there");
  ledger.note_new(5, 10);
  check(!ledger.expects_present(), "half of a batch were there");
  ledger.set_worn(true);
  check(!ledger.has_room(1, 1000), "a worn table is to be rebuilt first");

  FakeGpu gpu;
  Control counters{};
  ledger.offer(1);
  ledger.ask(gpu, &counters, nullptr);
  gpu.has_arrived = true;
  ledger.expect_anew(30);
  check(!ledger.hear([](const Control&) {}), "expect_anew() forgets what was asked for");

  ledger.note_rebuilt(9);
  SizeLedger copy;
  ledger.expect(70);
  copy.note_copied(ledger, 33);
  check(copy.bound() == 33 && copy.peak() == 70 && copy.fresh_filter_bits() == 9 && !copy.is_pristine(), "a copy");
}

}  // namespace

int size_ledger(int, char**) {
  check_single_steps();
  check_captured();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Run run(seed);
    for (int i = 0; i < 1000; ++i) {
      run.step();
      run.check_all();
    }
  }
  return 0;
}
