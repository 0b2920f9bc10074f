// Many tensors on a GPU into one buffer and back, in one launch for up to 168 of them: scaled, and
// in the type that travels. What core/algorithm/fused_view.h is on the processor.
//
// For the device that was current when it was opened. For one thread at a time.
#ifndef TFDIST_CUDA_PACKER_H_
#define TFDIST_CUDA_PACKER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_cache.h"

namespace tfdist {

class Packer {
 public:
  // `driver` outlives it; `kernels` is needed here only.
  static Status Open(CudaDriver* driver, const DeviceFacts& device, KernelCache* kernels,
                     std::unique_ptr<Packer>* packer);

  // Elements of a buffer for these tensors: each begins at a multiple of 8 elements.
  static int64_t BufferCount(const std::vector<TensorView>& tensors);

  // Puts into `stream`: buffer = wire(tensors * factor), with zeros between. All tensors have one
  // dtype. Types and factors are those that CastScaled (core/value/cast.h) takes; or the wire is
  // int32 for bool, int16 and uint16, with factor 1.
  Status Pack(const std::vector<TensorView>& tensors, DType wire, double factor, void* buffer,
              CudaStream stream);

  // Puts into `stream`: tensors = dtype(buffer * factor).
  Status Unpack(const std::vector<TensorView>& tensors, DType wire, double factor,
                const void* buffer, CudaStream stream);

 private:
  Packer(CudaDriver* driver, int multiprocessors);

  Status Move(const char* direction, const std::vector<TensorView>& tensors, DType wire,
              double factor, char* buffer, CudaStream stream);
  Status Launch(const std::string& name, const std::vector<TensorView>& tensors, size_t first,
                size_t behind, double factor, char* buffer, CudaStream stream);

  CudaDriver* const driver_;
  const int multiprocessors_;
  CudaModule module_ = nullptr;
  std::map<std::string, CudaFunction> functions_;  // those used so far
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_PACKER_H_
