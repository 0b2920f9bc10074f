// The device of an engine (core/engine/device.h) on NCCL and the CUDA driver: brings libraries,
// kernels, ranks and the thread that watches them together. The collectives are
// device_collective.h's.
#ifndef TFDIST_NCCL_NCCL_DEVICE_H_
#define TFDIST_NCCL_NCCL_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "core/engine/device.h"
#include "nccl/completion_thread.h"
#include "nccl/device_collective.h"
#include "nccl/gpu_libraries.h"
#include "nccl/host_hierarchy.h"
#include "nccl/nccl_ranks.h"

namespace tfdist {

class NcclDevice : public Device {
 public:
  // What `load` gives outlives the device.
  NcclDevice(const DeviceSpec& spec, LibraryLoader load);
  ~NcclDevice() override;

  int number() const override { return collective_ != nullptr ? number_ : -1; }
  Status Prepare(const Call& call) override;
  Status Join(const Status& prepared, Communicator* transport, Wait* wait) override;
  bool joined() const override { return ranks_ != nullptr; }
  Status Allreduce(const Call& call, double share, const std::vector<TensorView>& outputs,
                   const Made& made, Wait* wait) override;
  Status ReduceScatter(const Call& call, const std::vector<TensorView>& outputs, const Made& made,
                       Wait* wait) override;
  Status Broadcast(const Call& call, int root, const std::vector<TensorView>& outputs,
                   const Made& made, Wait* wait) override;
  Status Allgather(const Call& call, const std::vector<int64_t>& rows,
                   const std::vector<TensorView>& outputs, const Made& made, Wait* wait) override;
  Status Alltoall(const Call& call, const std::vector<int64_t>& sent,
                  const std::vector<int64_t>& received, const TensorView& output, const Made& made,
                  Wait* wait) override;
  Status Mark(void* stream, void** mark) override;
  void Forget(void* mark) override;
  Status Precede(void* stream) override;
  void WhenDone(const std::string& title, const Done& done) override;
  void Finish() override;
  Status Close(Wait* wait) override;
  void Abort() override;

 private:
  Status Open();
  Status ChooseGpu();
  bool ReducesByHosts() const;
  Status CheckRanks();
  Status Verdict();
  void AbortRanks(const Status& why);
  DeviceCollective::Step StepOf(const Made& made, Wait* wait);
  void HideRange(uint64_t range);

  const DeviceSpec spec_;
  const LibraryLoader load_;
  int number_;
  GpuLibraries libraries_;
  DeviceFacts facts_;
  std::unique_ptr<NcclRanks> ranks_;
  std::unique_ptr<HostHierarchy> hierarchy_;  // null: allreduces go over all ranks at once
  std::unique_ptr<DeviceCollective> collective_;
  std::unique_ptr<CompletionThread> completions_;  // uses all of the above
  CudaEvent done_ = nullptr;                       // of the last collective
  uint64_t shown_ = 0;  // the profiler's range of the collective that is called; 0: none
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_NCCL_DEVICE_H_
