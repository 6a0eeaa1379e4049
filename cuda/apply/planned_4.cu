#include "cuda/apply/planned.cuh"

namespace gpuhash::cuda {

using View = TableView<std::uint32_t, std::uint32_t>;
template std::unique_ptr<Plan> make_apply_plan(DeviceContext&, const View&, const ApplyOrder&, Stream);
template void apply_planned(DeviceContext&, const View&, const ApplyOrder&, Stream);
template bool applies_at_once(const DeviceContext&, const View&, const ApplyOrder&);
template void apply_at_once(const View&, const ApplyOrder&, Stream);

}  // namespace gpuhash::cuda
