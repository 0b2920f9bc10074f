// How two parts of gradients on a GPU become one: launches of the kernels of adasum_kernels.h.
// Moves no data between ranks.
//
// Everything happens in a stream, also that the factors follow from the products: nothing waits on
// the host. For the device that was current when it was opened. For one thread at a time.
#ifndef TFDIST_CUDA_ADASUM_PAIR_H_
#define TFDIST_CUDA_ADASUM_PAIR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/status.h"
#include "cuda/adasum_kernels.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_cache.h"
#include "cuda/stream_memory.h"

namespace tfdist {

// Where a gradient, or what there is of it, lies within a part; in elements, both multiples of
// kAdasumVector.
struct AdasumSpan {
  int64_t start;
  int64_t count;
};

class AdasumPair {
 public:
  // `driver` outlives it; `kernels` is needed here only.
  static Status Open(CudaDriver* driver, const DeviceFacts& device, KernelCache* kernels,
                     std::unique_ptr<AdasumPair>* pair);

  // Puts into `stream`, always the same one: products[3 * s + {0, 1, 2}] = a.b, a.a and b.b of span
  // s, in float64. `a` and `b` are of `type`, an AdasumType (core/algorithm/adasum.h).
  Status Multiply(DType type, const std::vector<AdasumSpan>& spans, const void* a, const void* b,
                  double* products, CudaStream stream);

  // Puts into `stream`: a = Adasum(a, b) of each span, given the products of the whole gradients.
  Status Combine(DType type, const std::vector<AdasumSpan>& spans, const double* products,
                 const void* b, void* a, CudaStream stream);

 private:
  AdasumPair(CudaDriver* driver, int multiprocessors)
      : driver_(driver), multiprocessors_(multiprocessors), partials_(driver) {}

  Status Launch(const std::string& name, int64_t blocks, void** arguments, CudaStream stream);

  CudaDriver* const driver_;
  const int multiprocessors_;
  StreamMemory partials_;  // of the spans of one launch
  CudaModule module_ = nullptr;
  std::map<std::string, CudaFunction> functions_;  // those used so far
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_ADASUM_PAIR_H_
