// An allreduce on GPUs in three steps: within each host, between the hosts, within each host. For
// networks on which one NCCL ring over all ranks is slower than that.
//
// The ranks of a host share a buffer out among them by NCCL; each reduces its part with the ranks
// of its number on the other hosts, by NCCL or through the host's memory and the transport; then
// they gather the parts by NCCL. With the transport in between, the thread that calls waits for the
// GPU; the stream of the computation never does. For one thread at a time, but for Check and Abort.
#ifndef TFDIST_NCCL_HOST_HIERARCHY_H_
#define TFDIST_NCCL_HOST_HIERARCHY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/algorithm/fusion_buffer.h"
#include "core/value/dtype.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"
#include "cuda/cuda_driver.h"
#include "nccl/host_staging.h"
#include "nccl/nccl_ranks.h"

namespace tfdist {

class HostHierarchy {
 public:
  struct Setup {
    NcclApi* nccl = nullptr;
    CudaDriver* driver = nullptr;
    std::string gpu;  // as in NcclRanks::Open, with the next
    EngineConfig joining;
    std::function<Status()> check;  // Ok while no rank is known to be lost
    int channel = 0;                // of two numbers for Communicator::Subset, the first
    Hierarchy between = Hierarchy::kNccl;
  };

  // Whether these ranks have two levels: several hosts, with several and equally many ranks each.
  static bool Exists(const Topology& topology);

  // Room in elements that a buffer of `count` needs, so that it can be shared out evenly.
  static int64_t Padded(int64_t count, const Topology& topology);

  // All ranks of `transport` call it and get the same status.
  static Status Open(const Setup& setup, Communicator* transport, Wait* wait,
                     std::unique_ptr<HostHierarchy>* hierarchy);

  // Reduces `count` elements of `buffer`, which has room for Padded(count), in place.
  Status Allreduce(char* buffer, int64_t count, DType wire, NcclOperator op, CudaStream stream,
                   Wait* wait);

  // As those of NcclRanks.
  Status Check(const Wait& wait);
  Status end();
  void Abort(const Status& why);
  // Ends what the transport reduces between hosts, for the thread that runs collectives.
  void Part();
  Status Close(Wait* wait);

 private:
  HostHierarchy(const Setup& setup, const Topology& topology);

  Status AllreduceBetween(char* part, int64_t count, DType wire, NcclOperator op, CudaStream stream,
                          Wait* wait);
  Status AllreduceByTransport(char* part, int64_t count, DType wire, NcclOperator op,
                              CudaStream stream, Wait* wait);

  const Topology& topology_;
  std::unique_ptr<Communicator> host_;   // the ranks of this host
  std::unique_ptr<Communicator> peers_;  // those of this local rank
  std::unique_ptr<NcclRanks> within_;
  std::unique_ptr<NcclRanks> between_;  // null: the transport reduces between hosts
  HostStaging staging_;                 // a part in the host's memory
  FusionBuffer scratch_;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_HOST_HIERARCHY_H_
