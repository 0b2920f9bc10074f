#include "cuda/loaded_cuda_driver.h"

#include <map>
#include <mutex>
#include <string>

#include "cuda/shared_library.h"

namespace tfdist {
namespace {

constexpr const char* kSoname = "libcuda.so.1";

// What the driver's header calls these.
constexpr int kOutOfMemory = 2;
constexpr int kNotReady = 600;
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kDisableTiming = 2;

using Address = unsigned long long;  // NOLINT: the driver's own type for device memory
using Context = struct CUctx_st*;

// The C functions, by name; each returns 0 for success.
struct DriverFunctions {
  int (*cuInit)(unsigned);
  int (*cuDriverGetVersion)(int*);
  int (*cuGetErrorName)(int, const char**);
  int (*cuGetErrorString)(int, const char**);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetName)(char*, int, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDeviceTotalMem_v2)(size_t*, int);
  int (*cuDevicePrimaryCtxRetain)(Context*, int);
  int (*cuCtxSetCurrent)(Context);
  int (*cuCtxGetStreamPriorityRange)(int*, int*);
  int (*cuStreamCreateWithPriority)(CudaStream*, unsigned, int);
  int (*cuStreamDestroy_v2)(CudaStream);
  int (*cuStreamWaitEvent)(CudaStream, CudaEvent, unsigned);
  int (*cuEventCreate)(CudaEvent*, unsigned);
  int (*cuEventDestroy_v2)(CudaEvent);
  int (*cuEventRecord)(CudaEvent, CudaStream);
  int (*cuEventQuery)(CudaEvent);
  int (*cuModuleLoadData)(CudaModule*, const void*);
  int (*cuModuleGetFunction)(CudaFunction*, CudaModule, const char*);
  int (*cuLaunchKernel)(CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CudaStream, void**, void**);
  int (*cuMemAlloc_v2)(Address*, size_t);
  int (*cuMemFree_v2)(Address);
  int (*cuMemAllocHost_v2)(void**, size_t);
  int (*cuMemFreeHost)(void*);
  int (*cuMemsetD8Async)(Address, unsigned char, size_t, CudaStream);
  int (*cuMemcpyAsync)(Address, Address, size_t, CudaStream);
};

void FindAll(SharedLibrary* library, DriverFunctions* functions) {
#define TFDIST_FIND(name) library->Find(#name, &functions->name)
  TFDIST_FIND(cuInit);
  TFDIST_FIND(cuDriverGetVersion);
  TFDIST_FIND(cuGetErrorName);
  TFDIST_FIND(cuGetErrorString);
  TFDIST_FIND(cuDeviceGetCount);
  TFDIST_FIND(cuDeviceGet);
  TFDIST_FIND(cuDeviceGetName);
  TFDIST_FIND(cuDeviceGetAttribute);
  TFDIST_FIND(cuDeviceTotalMem_v2);
  TFDIST_FIND(cuDevicePrimaryCtxRetain);
  TFDIST_FIND(cuCtxSetCurrent);
  TFDIST_FIND(cuCtxGetStreamPriorityRange);
  TFDIST_FIND(cuStreamCreateWithPriority);
  TFDIST_FIND(cuStreamDestroy_v2);
  TFDIST_FIND(cuStreamWaitEvent);
  TFDIST_FIND(cuEventCreate);
  TFDIST_FIND(cuEventDestroy_v2);
  TFDIST_FIND(cuEventRecord);
  TFDIST_FIND(cuEventQuery);
  TFDIST_FIND(cuModuleLoadData);
  TFDIST_FIND(cuModuleGetFunction);
  TFDIST_FIND(cuLaunchKernel);
  TFDIST_FIND(cuMemAlloc_v2);
  TFDIST_FIND(cuMemFree_v2);
  TFDIST_FIND(cuMemAllocHost_v2);
  TFDIST_FIND(cuMemFreeHost);
  TFDIST_FIND(cuMemsetD8Async);
  TFDIST_FIND(cuMemcpyAsync);
#undef TFDIST_FIND
}

Address AddressOf(const void* memory) { return reinterpret_cast<Address>(memory); }

// Primary contexts are retained for good: the process needs them until it ends.
class LoadedCudaDriver : public CudaDriver {
 public:
  explicit LoadedCudaDriver(const DriverFunctions& functions) : call_(functions) {
    if (call_.cuDriverGetVersion(&version_) != 0) version_ = 0;
  }

  int version() const override { return version_; }

  Status CountDevices(int* count) override {
    return ToStatus(call_.cuDeviceGetCount(count), "count the GPUs");
  }

  Status Describe(int device, DeviceFacts* facts) override {
    int handle = 0, major = 0, minor = 0;
    char name[256] = {};
    size_t bytes = 0;
    int result = call_.cuDeviceGet(&handle, device);
    const auto attribute = [&](int which, int* value) {
      if (result == 0) result = call_.cuDeviceGetAttribute(value, which, handle);
    };
    if (result == 0) result = call_.cuDeviceGetName(name, sizeof(name), handle);
    if (result == 0) result = call_.cuDeviceTotalMem_v2(&bytes, handle);
    attribute(kComputeCapabilityMajor, &major);
    attribute(kComputeCapabilityMinor, &minor);
    attribute(kMultiprocessorCount, &facts->multiprocessors);
    facts->name = name;
    facts->architecture = "sm_" + std::to_string(major) + std::to_string(minor);
    facts->memory_bytes = static_cast<int64_t>(bytes);
    return ToStatus(result, "inspect GPU " + std::to_string(device));
  }

  Status Use(int device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    int result = 0;
    if (contexts_.count(device) == 0) {
      int handle = 0;
      Context context = nullptr;
      result = call_.cuDeviceGet(&handle, device);
      if (result == 0) result = call_.cuDevicePrimaryCtxRetain(&context, handle);
      if (result == 0) contexts_[device] = context;
    }
    if (result == 0) result = call_.cuCtxSetCurrent(contexts_[device]);
    return ToStatus(result, "use GPU " + std::to_string(device));
  }

  Status NewStream(bool urgent, CudaStream* stream) override {
    int least = 0, greatest = 0;
    int result = call_.cuCtxGetStreamPriorityRange(&least, &greatest);
    if (result == 0) {
      result = call_.cuStreamCreateWithPriority(stream, kNonBlocking, urgent ? greatest : least);
    }
    return ToStatus(result, "create a stream");
  }
  Status DeleteStream(CudaStream stream) override {
    return ToStatus(call_.cuStreamDestroy_v2(stream), "delete a stream");
  }

  Status NewEvent(CudaEvent* event) override {
    return ToStatus(call_.cuEventCreate(event, kDisableTiming), "create an event");
  }
  Status DeleteEvent(CudaEvent event) override {
    return ToStatus(call_.cuEventDestroy_v2(event), "delete an event");
  }
  Status Record(CudaEvent event, CudaStream stream) override {
    return ToStatus(call_.cuEventRecord(event, stream), "record an event");
  }
  Status WaitFor(CudaStream stream, CudaEvent event) override {
    return ToStatus(call_.cuStreamWaitEvent(stream, event, 0), "make a stream wait for an event");
  }
  Status HasHappened(CudaEvent event, bool* happened) override {
    const int result = call_.cuEventQuery(event);
    *happened = result == 0;
    return ToStatus(result == kNotReady ? 0 : result, "run the work in a stream");
  }

  Status Load(const std::string& image, CudaModule* module) override {
    return ToStatus(call_.cuModuleLoadData(module, image.data()), "load the kernels");
  }
  Status Find(CudaModule module, const std::string& name, CudaFunction* function) override {
    return ToStatus(call_.cuModuleGetFunction(function, module, name.c_str()),
                    "find the kernel " + name);
  }
  Status Launch(CudaFunction function, int blocks, int threads, void** arguments,
                CudaStream stream) override {
    const auto across = static_cast<unsigned>(blocks), within = static_cast<unsigned>(threads);
    return ToStatus(
        call_.cuLaunchKernel(function, across, 1, 1, within, 1, 1, 0, stream, arguments, nullptr),
        "launch a kernel");
  }

  Status Allocate(int64_t bytes, void** memory) override {
    Address address = 0;
    const int result = call_.cuMemAlloc_v2(&address, static_cast<size_t>(bytes));
    *memory = reinterpret_cast<void*>(address);
    return ToStatus(result, "allocate " + std::to_string(bytes) + " bytes");
  }
  Status Free(void* memory) override {
    return ToStatus(call_.cuMemFree_v2(AddressOf(memory)), "free memory");
  }
  Status AllocateHost(int64_t bytes, void** memory) override {
    return ToStatus(call_.cuMemAllocHost_v2(memory, static_cast<size_t>(bytes)),
                    "allocate " + std::to_string(bytes) + " bytes of host memory");
  }
  Status FreeHost(void* memory) override {
    return ToStatus(call_.cuMemFreeHost(memory), "free host memory");
  }
  Status Clear(void* memory, int64_t bytes, CudaStream stream) override {
    return ToStatus(call_.cuMemsetD8Async(AddressOf(memory), 0, static_cast<size_t>(bytes), stream),
                    "clear memory");
  }
  Status Copy(void* target, const void* source, int64_t bytes, CudaStream stream) override {
    return ToStatus(call_.cuMemcpyAsync(AddressOf(target), AddressOf(source),
                                        static_cast<size_t>(bytes), stream),
                    "copy memory");
  }

 private:
  Status ToStatus(int result, const std::string& what) const {
    if (result == 0) return Status::Ok();
    const char* name = nullptr;
    const char* text = nullptr;
    call_.cuGetErrorName(result, &name);
    call_.cuGetErrorString(result, &text);
    const StatusCode code =
        result == kOutOfMemory ? StatusCode::kResourceExhausted : StatusCode::kInternal;
    return Status(code, "the CUDA driver could not " + what + ": " +
                            (name != nullptr ? name : "error " + std::to_string(result)) +
                            (text != nullptr ? std::string(" (") + text + ")" : ""));
  }

  const DriverFunctions call_;
  int version_ = 0;
  std::mutex mutex_;
  std::map<int, Context> contexts_;  // by device
};

}  // namespace

Status LoadCudaDriver(std::unique_ptr<CudaDriver>* driver) {
  SharedLibrary library({}, {kSoname});
  if (!library.IsOpen()) {
    return Status(StatusCode::kUnimplemented,
                  "the NVIDIA driver was not found: " + library.error() +
                      ". Install it on the host; start containers with GPU access (docker run "
                      "--gpus all).");
  }
  DriverFunctions functions;
  FindAll(&library, &functions);
  if (!library.missing().empty()) {
    return Status(StatusCode::kUnimplemented, "the NVIDIA driver is too old: it lacks " +
                                                  library.missing() +
                                                  ". Install a driver for CUDA 12 or newer.");
  }
  const int result = functions.cuInit(0);
  if (result != 0) {
    const char* text = nullptr;
    functions.cuGetErrorString(result, &text);
    return Status(StatusCode::kUnimplemented,
                  std::string("the NVIDIA driver failed to initialize: ") +
                      (text != nullptr ? text : std::to_string(result)) +
                      ". See nvidia-smi for details.");
  }
  *driver = std::make_unique<LoadedCudaDriver>(functions);
  return Status::Ok();
}

}  // namespace tfdist
