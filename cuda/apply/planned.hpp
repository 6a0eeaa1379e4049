#pragma once

#include <memory>

#include "table/executor.hpp"

/// insert_or_apply in one go with finding or inserting the keys.
/// Defined for tables with values beside keys of up to 8 bytes, in one source file per key width.
namespace gpuhash::cuda {

/// As Executor::plan_apply(), and null, too, where this device has no such kernels.
template <class View>
std::unique_ptr<Plan> make_apply_plan(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

/// batch.plan is not null.
template <class View>
void apply_planned(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

/// Can this batch be worked off in one kernel, which of a trial lists what it leaves out?
template <class View>
bool applies_at_once(const DeviceContext& context, const View& view, const ApplyOrder& batch);

/// Of a batch that applies_at_once(), without a plan.
template <class View>
void apply_at_once(const View& view, const ApplyOrder& batch, Stream stream);

}  // namespace gpuhash::cuda
