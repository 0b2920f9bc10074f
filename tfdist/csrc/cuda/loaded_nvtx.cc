#include "cuda/loaded_nvtx.h"

#include <iterator>

#include "cuda/shared_library.h"

namespace tfdist {
namespace {

// NVTX 3 as a library, and before CUDA 12.9 its forerunner, which has the same functions.
constexpr const char* kNvtxSonames[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};

using Domain = struct nvtxDomainRegistration_st*;

// nvtxEventAttributes_t.
struct Attributes {
  uint16_t version = 3;
  uint16_t size = sizeof(Attributes);
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0;
  int32_t reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 1;  // ASCII
  const char* message = nullptr;
};
static_assert(sizeof(Attributes) == 48, "as NVTX lays it out");

// The C functions, by name.
struct NvtxFunctions {
  Domain (*nvtxDomainCreateA)(const char* name);
  uint64_t (*nvtxDomainRangeStartEx)(Domain, const Attributes*);
  void (*nvtxDomainRangeEnd)(Domain, uint64_t range);
  int (*nvtxDomainRangePushEx)(Domain, const Attributes*);
  int (*nvtxDomainRangePop)(Domain);
};

void FindAllOfNvtx(SharedLibrary* library, NvtxFunctions* functions) {
#define TFDIST_FIND(name) library->Find(#name, &functions->name)
  TFDIST_FIND(nvtxDomainCreateA);
  TFDIST_FIND(nvtxDomainRangeStartEx);
  TFDIST_FIND(nvtxDomainRangeEnd);
  TFDIST_FIND(nvtxDomainRangePushEx);
  TFDIST_FIND(nvtxDomainRangePop);
#undef TFDIST_FIND
}

Attributes Named(const std::string& name) {
  Attributes attributes;
  attributes.message = name.c_str();
  return attributes;
}

// The domain lives as long as the process.
class LoadedNvtx : public Profiler {
 public:
  LoadedNvtx(const NvtxFunctions& functions, Domain domain) : call_(functions), domain_(domain) {}

  uint64_t Start(const std::string& name) override {
    const Attributes attributes = Named(name);
    return call_.nvtxDomainRangeStartEx(domain_, &attributes);
  }

  void End(uint64_t range) override { call_.nvtxDomainRangeEnd(domain_, range); }

  void Push(const std::string& name) override {
    const Attributes attributes = Named(name);
    call_.nvtxDomainRangePushEx(domain_, &attributes);
  }

  void Pop() override { call_.nvtxDomainRangePop(domain_); }

 private:
  const NvtxFunctions call_;
  const Domain domain_;
};

}  // namespace

std::unique_ptr<Profiler> LoadNvtx(const std::vector<std::string>& paths) {
  SharedLibrary library({std::begin(kNvtxSonames), std::end(kNvtxSonames)}, paths);
  NvtxFunctions functions;
  FindAllOfNvtx(&library, &functions);
  if (!library.missing().empty()) return nullptr;
  // Null where no profiler listens.
  const Domain domain = functions.nvtxDomainCreateA("tfdist");
  if (domain == nullptr) return nullptr;
  return std::make_unique<LoadedNvtx>(functions, domain);
}

}  // namespace tfdist
