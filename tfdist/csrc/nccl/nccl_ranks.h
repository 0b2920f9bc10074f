// The ranks of a transport, joined by NCCL: collectives on device memory, in the order of a stream.
//
// No call blocks for longer than `wait` allows, none waits for the device, and no call follows an
// error but the destructor: a failed communicator is aborted at once, because its kernels hold the
// GPU, and a new one is opened instead. Errors of the device or of a peer come later than the call
// that caused them: Check finds them. Owns NCCL's communicator, not what it is given. For one
// thread at a time, but for Check and Abort.
#ifndef TFDIST_NCCL_NCCL_RANKS_H_
#define TFDIST_NCCL_NCCL_RANKS_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"
#include "nccl/nccl_api.h"

namespace tfdist {

class NcclRanks {
 public:
  // Joins all ranks of `transport`; all of them call it, each with its GPU as current device, which
  // is called `gpu` in messages. One that fails, or has not joined at the deadline of `joining`,
  // fails all alike. That is to be shorter than `wait`, by which those that failed at once wait for
  // the rest.
  static Status Open(NcclApi* nccl, const std::string& gpu, const EngineConfig& joining,
                     Communicator* transport, Wait* wait, std::unique_ptr<NcclRanks>* ranks);

  // The same status on every rank, an error if one has one. A rank that cannot call Open calls this
  // instead, with the reason.
  static Status Agree(const Status& own, Communicator* transport, Wait* wait);

  // Aborts what was not closed.
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  // Each puts its call into `stream`.
  Status AllReduce(const void* source, void* target, size_t count, NcclType type, NcclOperator op,
                   CudaStream stream, Wait* wait);
  Status Broadcast(const void* source, void* target, size_t count, NcclType type, int root,
                   CudaStream stream, Wait* wait);
  Status ReduceScatter(const void* source, void* target, size_t target_count, NcclType type,
                       NcclOperator op, CudaStream stream, Wait* wait);
  Status AllGather(const void* source, void* target, size_t source_count, NcclType type,
                   CudaStream stream, Wait* wait);

  // Messages of device memory, as Communicator::Exchange.
  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  CudaStream stream, Wait* wait);

  // Ok while nothing is known to have failed; does not wait. Thread safe.
  Status Check(const Wait& wait);

  // Ok unless it was closed, aborted or has failed. Thread safe.
  Status end();

  // Ends it at once, without the others: what is in streams ends too, and all later calls return
  // `why`. Thread safe.
  void Abort(const Status& why);

  // Ends it with all ranks, each of which has called it.
  Status Close(Wait* wait);

 private:
  // What is known of a failure, what says most of its cause first.
  enum Failure { kNone, kCause, kWaitedInVain, kFollowed };

  NcclRanks(NcclApi* nccl, std::string gpu, const Topology& topology);

  // One function of NCCL, by this thread alone.
  using NcclCall = std::function<NcclResult()>;

  Status Run(const NcclCall& call, const char* what, Wait* wait);
  Status Settle(NcclResult result, const char* what, Wait* wait);
  Status Fail(NcclResult result, const char* what, const Wait& wait);
  std::string Self() const;
  void AbortLocked();

  NcclApi* const nccl_;
  const std::string gpu_;
  const Topology& topology_;
  std::mutex mutex_;  // guards all below; not held while waiting
  NcclHandle handle_ = nullptr;
  Status end_;  // why nothing is possible any more
  Failure failure_ = kNone;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_NCCL_RANKS_H_
