#include "nccl/gpu_report.h"

#include <set>
#include <vector>

#include "core/engine/device_report.h"
#include "core/watch/json_text.h"
#include "cuda/kernel_cache.h"
#include "cuda/loaded_cuda_driver.h"
#include "cuda/loaded_nvrtc.h"
#include "cuda/pack_kernels.h"
#include "nccl/loaded_nccl.h"

namespace tfdist {
namespace {

std::string Failed(const Status& status) {
  return "{\"error\": " + JsonText(status.message()) + "}";
}

std::string Joined(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) text += (text.size() > 1 ? ", " : "") + item;
  return text + "]";
}

// NCCL or the compiler.
template <typename Part>
std::string Library(const std::function<Status(std::unique_ptr<Part>*)>& find,
                    std::unique_ptr<Part>* part) {
  const Status found = find(part);
  if (!found.ok()) return Failed(found);
  return "{\"version\": " + std::to_string((*part)->version()) +
         ", \"text\": " + JsonText((*part)->Describe()) + "}";
}

std::string Gpu(const DeviceFacts& facts) {
  return "{\"name\": " + JsonText(facts.name) +
         ", \"architecture\": " + JsonText(facts.architecture) +
         ", \"memory_bytes\": " + std::to_string(facts.memory_bytes) +
         ", \"multiprocessors\": " + std::to_string(facts.multiprocessors) + "}";
}

// Describes all GPUs and collects their architectures; an error of the count is the driver's.
Status Gpus(CudaDriver* driver, std::vector<std::string>* gpus,
            std::set<std::string>* architectures) {
  int count = 0;
  TFDIST_RETURN_IF_ERROR(driver->CountDevices(&count));
  for (int device = 0; device < count; ++device) {
    DeviceFacts facts;
    const Status described = driver->Describe(device, &facts);
    gpus->push_back(described.ok() ? Gpu(facts) : Failed(described));
    if (described.ok()) architectures->insert(facts.architecture);
  }
  return Status::Ok();
}

std::string Kernels(KernelCompiler* compiler, const std::string& folder,
                    const std::string& architecture) {
  KernelCache cache(compiler, folder);
  std::string image;
  const Status compiled = cache.Image(PackKernels(), architecture, &image);
  return "{\"architecture\": " + JsonText(architecture) +
         (compiled.ok() ? "" : ", \"error\": " + JsonText(compiled.message())) + "}";
}

std::string ReportGpus(const EngineConfig& config) {
  GpuParts parts;
  parts.driver = LoadCudaDriver;
  parts.compiler = [&](std::unique_ptr<KernelCompiler>* compiler) {
    return LoadNvrtc(config.nvrtc_libraries, compiler);
  };
  parts.nccl = [&](std::unique_ptr<NcclApi>* nccl) {
    return LoadNccl(config.nccl_libraries, nccl);
  };
  parts.kernel_cache = config.kernel_cache;
  return GpuReport(parts);
}

[[maybe_unused]] const bool kReports = RegisterDeviceReport(ReportGpus);

}  // namespace

std::string GpuReport(const GpuParts& parts) {
  std::unique_ptr<CudaDriver> driver;
  std::vector<std::string> gpus, kernels;
  std::set<std::string> architectures;
  Status status = parts.driver(&driver);
  if (status.ok()) status = Gpus(driver.get(), &gpus, &architectures);
  const std::string of_driver =
      status.ok() ? "{\"version\": " + std::to_string(driver->version()) + "}" : Failed(status);

  std::unique_ptr<NcclApi> nccl;
  std::unique_ptr<KernelCompiler> compiler;
  const std::string of_nccl = Library(parts.nccl, &nccl);
  const std::string of_compiler = Library(parts.compiler, &compiler);
  if (compiler != nullptr) {
    for (const std::string& architecture : architectures) {
      kernels.push_back(Kernels(compiler.get(), parts.kernel_cache, architecture));
    }
  }
  return "{\"driver\": " + of_driver + ", \"gpus\": " + Joined(gpus) + ", \"nccl\": " + of_nccl +
         ", \"compiler\": " + of_compiler + ", \"kernels\": " + Joined(kernels) + "}";
}

}  // namespace tfdist
