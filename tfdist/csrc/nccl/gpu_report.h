// The report on GPUs, driver, NCCL and compiler (core/engine/device_report.h): what is found,
// whether it loads, and whether the kernels compile for each GPU. Opens no communicator and starts
// no kernel.
#ifndef TFDIST_NCCL_GPU_REPORT_H_
#define TFDIST_NCCL_GPU_REPORT_H_

#include <functional>
#include <memory>
#include <string>

#include "core/value/status.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_compiler.h"
#include "nccl/nccl_api.h"

namespace tfdist {

// How each part is found.
struct GpuParts {
  std::function<Status(std::unique_ptr<CudaDriver>*)> driver;
  std::function<Status(std::unique_ptr<KernelCompiler>*)> compiler;
  std::function<Status(std::unique_ptr<NcclApi>*)> nccl;
  std::string kernel_cache;  // folder of compiled kernels; empty: none
};

// JSON: {"driver": {"version": 12090},
//        "gpus": [{"name": ..., "architecture": ..., "memory_bytes": ..., "multiprocessors": ...}],
//        "nccl": {"version": 22800, "text": ...}, "compiler": {"version": 12009, "text": ...},
//        "kernels": [{"architecture": "sm_90"}]}
// Whatever failed has {"error": its message} in place of the rest. All kernels are compiled, once
// for each architecture, where there is a compiler.
std::string GpuReport(const GpuParts& parts);

}  // namespace tfdist

#endif  // TFDIST_NCCL_GPU_REPORT_H_
