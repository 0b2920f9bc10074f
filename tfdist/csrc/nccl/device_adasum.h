// Adasum of tensors on a GPU: what core/algorithm/adasum.h says, folded by all ranks together.
//
// As on the processor every rank holds one slice of all ranks' gradients and folds that, and the
// products of a level, which decide the factors, are summed over the ranks by NCCL. Results are
// then gathered, so they have the same bits on all ranks; nothing waits on the host.
//
// Takes, while it works and from then on, memory for about 8 bytes an element of the largest call,
// 16 for float64, however many ranks there are. Owns that, not what it is given. For one thread at
// a time, with its device current.
#ifndef TFDIST_NCCL_DEVICE_ADASUM_H_
#define TFDIST_NCCL_DEVICE_ADASUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/place/topology.h"
#include "core/value/compression.h"
#include "core/value/reduction.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/wire/wait.h"
#include "cuda/adasum_pair.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_cache.h"
#include "cuda/packer.h"
#include "cuda/stream_memory.h"
#include "nccl/nccl_ranks.h"

namespace tfdist {

struct AdasumCall {
  Compression compression = Compression::kNone;
  double prescale = 1;   // multiplies each input, before it is rounded to the type that travels
  double postscale = 1;  // multiplies the result, which was rounded to that type too
};

// What it works with; all of it outlives it.
struct AdasumTools {
  CudaDriver* driver;
  Packer* packer;
  NcclRanks* ranks;  // may be given later, by Connect
};

class DeviceAdasum {
 public:
  // `device` is current and that of the tools, `topology` that of the ranks. `kernels` is needed
  // here only.
  static Status Open(const AdasumTools& tools, const DeviceFacts& device, const Topology& topology,
                     KernelCache* kernels, std::unique_ptr<DeviceAdasum>* adasum);

  // Before the first call.
  void Connect(NcclRanks* ranks) { tools_.ranks = ranks; }

  // Puts all of it into `stream`, which is the same in every call. outputs[i] has the shape of
  // inputs[i] and may be the same memory; all have one floating dtype, and all ranks give the same
  // shapes. Each tensor is folded by itself, whatever others are beside it. Without outputs, inputs
  // are zeros and have no memory.
  Status Allreduce(const AdasumCall& call, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, CudaStream stream, Wait* wait);

 private:
  // The elements of a call in memory.
  struct Layout;

  DeviceAdasum(const AdasumTools& tools, int rank, int size);

  Status Scatter(const Layout& layout, CudaStream stream, Wait* wait);
  Status Fold(const Layout& layout, CudaStream stream, Wait* wait);
  Status Gather(const Layout& layout, CudaStream stream, Wait* wait);

  AdasumTools tools_;
  const int rank_;
  const int size_;
  std::unique_ptr<AdasumPair> pair_;
  StreamMemory packed_;    // this rank's gradients as they travel, later the results
  StreamMemory incoming_;  // this rank's slice of each rank's, as it travels
  StreamMemory parts_;     // the same in the type they are kept in
  StreamMemory products_;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_DEVICE_ADASUM_H_
