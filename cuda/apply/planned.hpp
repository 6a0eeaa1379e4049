#pragma once

#include <memory>

#include "table/executor.hpp"

/// insert_or_apply in one go with finding or inserting the keys: of partitioned batches, and of those that are tried.
/// Defined for tables with values beside keys of up to 8 bytes, in one source file per key width.
namespace gpuhash::cuda {

/// As Executor::plan_apply(), and null, too, where this device has no such kernels.
template <class View>
std::unique_ptr<Plan> make_apply_plan(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

/// batch.plan is not null.
template <class View>
void apply_planned(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

/// Can a trial of this batch be worked off in one kernel, which lists what it leaves out?
template <class View>
bool applies_at_once(const View& view, const ApplyOrder& batch);

/// A trial, of a batch that applies_at_once().
template <class View>
void apply_at_once(const View& view, const ApplyOrder& batch, Stream stream);

}  // namespace gpuhash::cuda
