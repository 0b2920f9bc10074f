// The functions of the CUDA driver that tfdist uses, as an interface: loaded_cuda_driver.h is the
// real one, tests have a fake. Building needs neither its header nor a GPU.
//
// Streams and events are of the device that is current for the calling thread. Calls return when
// the work is in its stream, not when it is done; what went wrong in earlier work may come as the
// error of any later call. Thread safe.
#ifndef TFDIST_CUDA_CUDA_DRIVER_H_
#define TFDIST_CUDA_CUDA_DRIVER_H_

#include <cstdint>
#include <string>

#include "core/value/status.h"

namespace tfdist {

using CudaStream = struct CUstream_st*;
using CudaEvent = struct CUevent_st*;
using CudaModule = struct CUmod_st*;
using CudaFunction = struct CUfunc_st*;

struct DeviceFacts {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  // As 12090 for 12.9: the newest CUDA that this driver can run.
  virtual int version() const = 0;

  virtual Status CountDevices(int* count) = 0;
  virtual Status Describe(int device, DeviceFacts* facts) = 0;
  // Makes `device` current for this thread, in the context that CUDA's runtime uses too.
  virtual Status Use(int device) = 0;

  // `urgent`: its work goes before that of ordinary streams where both could run.
  virtual Status NewStream(bool urgent, CudaStream* stream) = 0;
  virtual Status DeleteStream(CudaStream stream) = 0;
  virtual Status NewEvent(CudaEvent* event) = 0;
  virtual Status DeleteEvent(CudaEvent event) = 0;
  // `event` happens when all that is in `stream` now is done.
  virtual Status Record(CudaEvent event, CudaStream stream) = 0;
  // What comes into `stream` from now on waits for `event`, on the device and not here.
  virtual Status WaitFor(CudaStream stream, CudaEvent event) = 0;
  virtual Status HasHappened(CudaEvent event, bool* happened) = 0;

  // `image` as the compiler made it.
  virtual Status Load(const std::string& image, CudaModule* module) = 0;
  virtual Status Find(CudaModule module, const std::string& name, CudaFunction* function) = 0;
  // `arguments[i]` points to the i-th argument, which is copied.
  virtual Status Launch(CudaFunction function, int blocks, int threads, void** arguments,
                        CudaStream stream) = 0;

  virtual Status Allocate(int64_t bytes, void** memory) = 0;
  virtual Status Free(void* memory) = 0;
  // Memory of the host that a copy does not block on.
  virtual Status AllocateHost(int64_t bytes, void** memory) = 0;
  virtual Status FreeHost(void* memory) = 0;
  virtual Status Clear(void* memory, int64_t bytes, CudaStream stream) = 0;
  // Between host and device or within one, whichever the addresses are of. Of the host's memory
  // only that of AllocateHost is copied without waiting for the stream.
  virtual Status Copy(void* target, const void* source, int64_t bytes, CudaStream stream) = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_CUDA_DRIVER_H_
