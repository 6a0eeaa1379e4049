#include "cuda/train/kernels.cuh"

namespace gpuhash::cuda {

template void launch_training<1>(const TrainWork&, Stream);
template void launch_pooling<1>(const PoolWork&, Stream);

}  // namespace gpuhash::cuda
