#include "table/size_ledger.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpuhash {

void SizeLedger::expect(std::int64_t size) {
  bound_ = size;
  peak_ = std::max(peak_, size);
}

void SizeLedger::expect_anew(std::int64_t size) {
  asked_.reset();
  expect(size);
}

void SizeLedger::retract(std::int64_t bound) {
  if (is_sure()) bound_ = std::min(bound_, bound);
}

void SizeLedger::note_cleared() {
  bound_ = 0;
  peak_ = 0;
  exact_ = 0;
  offered_ = 0;
  fresh_filter_bits_ = 0;
  expects_present_ = false;
  is_pristine_ = is_sure();  // a graph may insert before anyone hears of it
  is_worn_ = false;
  asked_.reset();
}

void SizeLedger::note_rebuilt(std::uint64_t filter_bits) {
  asked_.reset();
  peak_ = 0;
  fresh_filter_bits_ = filter_bits;
}

void SizeLedger::note_copied(const SizeLedger& original, std::int64_t size) {
  expect(original.peak_);
  expect(size);
  is_pristine_ = false;
  fresh_filter_bits_ = original.fresh_filter_bits_;
}

void SizeLedger::prepare_to_read(DeviceContext& context) {
  if (readback_ == nullptr && !context.is_host()) readback_ = context.make_readback();
}

Control SizeLedger::read(DeviceContext& context, const Control* counters, Stream stream) {
  asked_.reset();
  Control control;
  if (context.is_host()) {
    context.copy_to_host(&control, counters, sizeof control, stream);
    return control;
  }
  prepare_to_read(context);
  readback_->send(counters, sizeof control, stream);
  std::memcpy(&control, readback_->wait(stream), sizeof control);
  return control;
}

void SizeLedger::note_size(std::int64_t size) {
  if (offered_ != 0) note_new(size - exact_, offered_);
  offered_ = 0;
  exact_ = size;
  expect(size);
}

void SizeLedger::ask(DeviceContext& context, const Control* counters, Stream stream) {
  prepare_to_read(context);
  readback_->send(counters, sizeof(Control), stream);
  asked_ = {bound_, offered_};
}

auto SizeLedger::take_arrived() -> std::optional<Heard> {
  if (!asked_ || !is_sure()) return {};
  const void* const arrived = readback_->arrived();
  if (arrived == nullptr) return {};
  Heard heard{.control = {}, .added = bound_ - asked_->bound, .offered = offered_ - asked_->offered};
  std::memcpy(&heard.control, arrived, sizeof heard.control);
  offered_ = asked_->offered;
  asked_.reset();
  return heard;
}

}  // namespace gpuhash
