// NVTX, by which NVIDIA's profilers are told of ranges, found while the program runs.
#ifndef TFDIST_CUDA_LOADED_NVTX_H_
#define TFDIST_CUDA_LOADED_NVTX_H_

#include <memory>
#include <string>
#include <vector>

#include "cuda/profiler.h"

namespace tfdist {

// Ranges in the domain "tfdist". Tries `paths` in order, after what is loaded; it is never
// unloaded. Null where no profiler is attached, or NVTX is not found.
std::unique_ptr<Profiler> LoadNvtx(const std::vector<std::string>& paths);

}  // namespace tfdist

#endif  // TFDIST_CUDA_LOADED_NVTX_H_
