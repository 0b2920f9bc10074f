// Collectives of tensors on a GPU, in a stream of its own beside the computation. Reductions are
// fused: packed by one kernel, reduced by NCCL, unpacked by one kernel, bucket after bucket.
//
// The stream of the computation waits for nothing: what it holds when a call comes is waited for by
// the collectives' stream, on the device, and the caller learns from an event when the results are
// there. Nothing waits here for the device, but for what goes through the host (host_staging.h):
// Adasum, which the processor folds, and the hierarchy by the transport. Owns its stream, buffers
// and events; not what it is given. For one thread at a time, with its device current.
#ifndef TFDIST_NCCL_DEVICE_COLLECTIVE_H_
#define TFDIST_NCCL_DEVICE_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/algorithm/fusion_buffer.h"
#include "core/algorithm/plan_cache.h"
#include "core/value/compression.h"
#include "core/value/reduction.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_cache.h"
#include "cuda/packer.h"
#include "cuda/profiler.h"
#include "cuda/stream_memory.h"
#include "nccl/host_hierarchy.h"
#include "nccl/host_staging.h"
#include "nccl/nccl_ranks.h"

namespace tfdist {

struct DeviceReduce {
  Reduction reduction = Reduction::kSum;  // kAdasum for Allreduce only
  Compression compression = Compression::kNone;
  double prescale = 1;   // multiplies each input, before it is rounded to the type that travels
  double postscale = 1;  // multiplies the result
  // With kAverage, below 0: all ranks count alike. Else the result is the sum of the inputs times
  // each rank's share; a rank of share 0 gives zeros, whatever its inputs are.
  double share = -1;
  int64_t fusion_threshold_bytes = 0;
  bool by_hosts = false;  // Allreduce, but for kAdasum: by the hierarchy
};

class DeviceCollective {
 public:
  // `device` is current; `kernels` is needed here only.
  static Status Open(CudaDriver* driver, const DeviceFacts& device, KernelCache* kernels,
                     const Topology& topology, std::unique_ptr<DeviceCollective>* collective);

  // Everything that was put into its stream must have happened, or its ranks be aborted.
  ~DeviceCollective();
  DeviceCollective(const DeviceCollective&) = delete;
  DeviceCollective& operator=(const DeviceCollective&) = delete;

  // Before the first collective: the ranks of `topology`, by the transport and on the same device;
  // and how they reduce by hosts, if they do.
  void Connect(Communicator* transport, NcclRanks* ranks, HostHierarchy* hierarchy);

  // Plans one of the two reductions and reserves its memory. Talks to nobody; the reduction of the
  // same tensors follows.
  Status PrepareAllreduce(const DeviceReduce& reduce, const std::vector<TensorView>& inputs);
  Status PrepareReduceScatter(const DeviceReduce& reduce, const std::vector<TensorView>& inputs);

  // What makes the inputs: what `stream`, where it is not null, holds now, or held when it got its
  // `mark`.
  struct Made {
    CudaStream stream;
    CudaEvent mark;
  };

  // `done` happens when all outputs are written; until then nobody may write inputs or read
  // outputs. The caller gives it back by Release.
  struct Step {
    Made made;
    Wait* wait;
    CudaEvent* done;
    Profiler* profiler = nullptr;  // shows what is put into the stream, bucket by bucket
  };

  // Marks what `stream` holds now; given back by Release when the collective has been called.
  // Thread safe.
  Status Mark(CudaStream stream, CudaEvent* mark);

  // outputs[i] has the shape of inputs[i] and may be the same memory. Without outputs, inputs are
  // zeros and have no memory.
  Status Allreduce(const DeviceReduce& reduce, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const Step& step);

  // outputs[i] has this rank's rows (OwnRows in core/algorithm/fused_collective.h).
  Status ReduceScatter(const DeviceReduce& reduce, const std::vector<TensorView>& inputs,
                       const std::vector<TensorView>& outputs, const Step& step);

  Status Broadcast(int root, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const Step& step);

  // rows[i * size + r] is what rank r gives of tensor i. Without outputs the result is dropped.
  Status Allgather(const std::vector<TensorView>& inputs, const std::vector<int64_t>& rows,
                   const std::vector<TensorView>& outputs, const Step& step);

  // sent[r] rows of `input` go to rank r, received[r] come from there.
  Status Alltoall(const TensorView& input, const std::vector<int64_t>& sent,
                  const std::vector<int64_t>& received, const TensorView& output, const Step& step);

  // `event` is a `done` that has happened, or a mark. Thread safe.
  void Release(CudaEvent event);

 private:
  DeviceCollective(CudaDriver* driver, const Topology& topology);

  Status Run(const Step& step, const std::function<Status()>& body);
  Status Plan(const DeviceReduce& reduce, const std::vector<TensorView>& inputs);
  Status AllreduceBucket(const DeviceReduce& reduce, const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs, Wait* wait);
  Status AdasumBuffer(const std::vector<TensorView>& inputs, DType wire, Wait* wait);
  Status ReduceScatterBucket(const DeviceReduce& reduce, const std::vector<TensorView>& inputs,
                             const std::vector<TensorView>& outputs, Wait* wait);
  Status AllgatherTensor(const TensorView& input, const std::vector<int64_t>& bytes, void* output,
                         Wait* wait);
  Status TakeEvent(CudaEvent* event);

  CudaDriver* const driver_;
  const Topology topology_;
  Communicator* transport_ = nullptr;
  NcclRanks* ranks_ = nullptr;
  HostHierarchy* hierarchy_ = nullptr;
  std::unique_ptr<Packer> packer_;
  CudaStream stream_ = nullptr;
  CudaEvent ready_ = nullptr;  // the inputs are; recorded anew by each call
  PlanCache plans_;
  SharedPlan plan_;  // of the reduction that was prepared
  StreamMemory buffer_;
  HostStaging staging_;  // of the buffer, for Adasum, as the next two
  FusionBuffer parts_, scratch_;
  std::mutex mutex_;               // guards the two lists below
  std::vector<CudaEvent> events_;  // all that were made, but `ready_`
  std::vector<CudaEvent> free_events_;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_DEVICE_COLLECTIVE_H_
