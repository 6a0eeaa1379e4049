#include "cuda/train/kernels.cuh"

namespace gpuhash::cuda {

template void launch_training<2>(const TrainWork&, Stream);
template void launch_pooling<2>(const PoolWork&, Stream);

}  // namespace gpuhash::cuda
