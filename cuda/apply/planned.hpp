#pragma once

#include <memory>

#include "table/executor.hpp"

/// insert_or_apply of partitioned batches. Defined for tables with values beside keys of up to 8 bytes, in one source
/// file per key width.
namespace gpuhash::cuda {

/// As Executor::plan_apply(), and null, too, where this device has no such kernels.
template <class View>
std::unique_ptr<Plan> make_apply_plan(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

/// batch.plan is not null.
template <class View>
void apply_planned(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream);

}  // namespace gpuhash::cuda
