#pragma once

#include "executor.hpp"

namespace gpuhash {

/// The algorithms on the host, on all cores; done when a call returns. A batch has the effect of a loop over it, in
/// order.
template <class Key, class Value>
class HostExecutor final : public Executor<Key, Value> {
 public:
  using View = TableView<Key, Value>;

  void clear(DeviceContext&, const View& view, Stream) const override;
  void find(DeviceContext&, const View& view, const KeyBatch& keys, const FindOutput& out, Stream) const override;
  void insert(DeviceContext&, const View& view, const InsertBatch& batch, Stream) const override;
  void apply(DeviceContext&, const View& view, const ApplyBatch& batch, Stream) const override;
  void erase(DeviceContext&, const View& view, const KeyBatch& keys, bool* erased, const Plan*, Stream) const override;
  void list_absent(DeviceContext&, const View& view, const KeyBatch& keys, Key* out, Stream) const override;
  void rehash(DeviceContext&, const View& from, const View& to, bool compact_rows, Stream) const override;
  void export_items(DeviceContext&, const View& view, void* keys, std::uint32_t key_bytes, void* values,
                    std::int64_t value_bytes, std::int64_t* rows, Stream) const override;
};

const Executors& host_executors();

}  // namespace gpuhash
