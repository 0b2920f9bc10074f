// A profiler, as NVTX loads one, by NVIDIA's own headers: prints what it is told in tfdist's
// domain.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstring>

namespace {

int depth = 0;
uint64_t ranges = 0;

const char* NameOf(const nvtxEventAttributes_t* event) {
  const bool fits = event->version == NVTX_VERSION && event->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return fits && event->messageType == NVTX_MESSAGE_TYPE_ASCII ? event->message.ascii : "?";
}

nvtxDomainHandle_t Create(const char* name) {
  static int domain = 0;
  std::printf("domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

nvtxRangeId_t Start(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  std::printf("start %d %s\n", static_cast<int>(++ranges), NameOf(event));
  return ranges;
}

void End(nvtxDomainHandle_t, nvtxRangeId_t range) {
  std::printf("end %d\n", static_cast<int>(range));
}

int Push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  std::printf("push %s\n", NameOf(event));
  return depth++;
}

int Pop(nvtxDomainHandle_t) {
  std::printf("pop\n");
  return --depth;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(Create);
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = reinterpret_cast<NvtxFunctionPointer>(Start);
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = reinterpret_cast<NvtxFunctionPointer>(End);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(Push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}
