// The libraries that collectives on GPUs use: driver, NCCL, the compiler of kernels, and NVTX for
// profilers, each opened once a process and kept. Thread safe.
#ifndef TFDIST_NCCL_GPU_LIBRARIES_H_
#define TFDIST_NCCL_GPU_LIBRARIES_H_

#include <functional>

#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_compiler.h"
#include "cuda/profiler.h"
#include "nccl/nccl_api.h"

namespace tfdist {

struct GpuLibraries {
  CudaDriver* driver = nullptr;
  NcclApi* nccl = nullptr;
  KernelCompiler* compiler = nullptr;
  Profiler* profiler = nullptr;  // null where none is attached
};

// How a device gets them; tests give fakes.
using LibraryLoader = std::function<Status(const EngineConfig& config, GpuLibraries* libraries)>;

// Those that `config` names the places of. An error says which is missing, what was tried and what
// to install; the next call tries again. NVTX may be missing.
Status LoadGpuLibraries(const EngineConfig& config, GpuLibraries* libraries);

}  // namespace tfdist

#endif  // TFDIST_NCCL_GPU_LIBRARIES_H_
