// The CUDA driver (libcuda.so.1, part of NVIDIA's driver), found while the program runs.
#ifndef TFDIST_CUDA_LOADED_CUDA_DRIVER_H_
#define TFDIST_CUDA_LOADED_CUDA_DRIVER_H_

#include <memory>

#include "core/value/status.h"
#include "cuda/cuda_driver.h"

namespace tfdist {

// kUnimplemented, with the reason, where there is no driver, or none that works.
Status LoadCudaDriver(std::unique_ptr<CudaDriver>* driver);

}  // namespace tfdist

#endif  // TFDIST_CUDA_LOADED_CUDA_DRIVER_H_
