#include "nccl/gpu_libraries.h"

#include <memory>
#include <mutex>

#include "cuda/loaded_cuda_driver.h"
#include "cuda/loaded_nvrtc.h"
#include "cuda/loaded_nvtx.h"
#include "nccl/loaded_nccl.h"

namespace tfdist {
namespace {

struct Loaded {
  std::mutex mutex;
  std::unique_ptr<CudaDriver> driver;
  std::unique_ptr<NcclApi> nccl;
  std::unique_ptr<KernelCompiler> compiler;
  std::unique_ptr<Profiler> profiler;
  bool looked_for_profiler = false;
};

// Never destroyed: work of the GPU may outlive everything else.
Loaded& TheLibraries() {
  static Loaded* const loaded = new Loaded;
  return *loaded;
}

}  // namespace

Status LoadGpuLibraries(const EngineConfig& config, GpuLibraries* libraries) {
  Loaded& loaded = TheLibraries();
  std::lock_guard<std::mutex> lock(loaded.mutex);
  if (loaded.driver == nullptr) TFDIST_RETURN_IF_ERROR(LoadCudaDriver(&loaded.driver));
  if (loaded.nccl == nullptr) {
    TFDIST_RETURN_IF_ERROR(LoadNccl(config.nccl_libraries, &loaded.nccl));
  }
  if (loaded.compiler == nullptr) {
    TFDIST_RETURN_IF_ERROR(LoadNvrtc(config.nvrtc_libraries, &loaded.compiler));
  }
  if (!loaded.looked_for_profiler) {
    loaded.looked_for_profiler = true;
    // Where it is missing, nothing is shown; tfdist.init() has said so to whom it concerns.
    loaded.profiler = LoadNvtx(config.nvtx_libraries);
  }
  *libraries = {loaded.driver.get(), loaded.nccl.get(), loaded.compiler.get(),
                loaded.profiler.get()};
  return Status::Ok();
}

}  // namespace tfdist
