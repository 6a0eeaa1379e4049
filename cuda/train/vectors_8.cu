#include "cuda/train/kernels.cuh"

namespace gpuhash::cuda {

template void launch_training<8>(const TrainWork&, Stream);
template void launch_pooling<8>(const PoolWork&, Stream);

}  // namespace gpuhash::cuda
