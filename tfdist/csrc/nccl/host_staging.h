// Memory of the host in which the processor works on what a GPU has. For what NCCL cannot do.
//
// The thread that calls waits for the GPU; the stream of the computation never does. For one thread
// at a time, with its device current.
#ifndef TFDIST_NCCL_HOST_STAGING_H_
#define TFDIST_NCCL_HOST_STAGING_H_

#include <cstdint>
#include <functional>

#include "core/place/topology.h"
#include "core/value/status.h"
#include "core/wire/wait.h"
#include "cuda/cuda_driver.h"

namespace tfdist {

class HostStaging {
 public:
  // Ok while what is in the stream may come to an end.
  using Check = std::function<Status(const Wait& wait)>;
  using Work = std::function<Status(char* copy)>;

  // All that is given outlives it.
  HostStaging(CudaDriver* driver, const Topology& topology, Check check);
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  // Makes room for `bytes`, which Run does too.
  Status Reserve(int64_t bytes);

  // When `stream` gets there, copies `bytes` from `data`, does `work` on the copy and copies it
  // back. An error of the work, or one that ends the wait for the stream, leaves `data` undefined.
  Status Run(char* data, int64_t bytes, const Work& work, CudaStream stream, Wait* wait);

 private:
  Status AwaitCopies(CudaStream stream, Wait* wait);

  CudaDriver* const driver_;
  const Topology& topology_;
  const Check check_;
  CudaEvent copied_ = nullptr;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_HOST_STAGING_H_
