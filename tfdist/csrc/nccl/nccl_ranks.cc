#include "nccl/nccl_ranks.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/algorithm/collective.h"

namespace tfdist {
namespace {

// What one rank tells all others of its part in the opening.
struct Report {
  int64_t failure;  // 0: none; else the lower, the more it says of the cause
  int64_t code;     // of a Status
  char text[1008];
};

// The same status on every rank: that of the first rank whose failure says most.
Status AgreeOn(int64_t failure, const Status& status, Communicator* transport, Wait* wait) {
  Report own = {failure, static_cast<int64_t>(status.code()), {}};
  status.message().copy(own.text, sizeof(own.text) - 1);
  const size_t size = static_cast<size_t>(transport->size());
  std::vector<Report> reports(size);
  FusionBuffer scratch;
  Collective collective(transport, wait, &scratch);
  TFDIST_RETURN_IF_ERROR(
      collective.Allgather(&own, std::vector<int64_t>(size, sizeof(Report)), reports.data()));
  const Report* told = nullptr;
  for (const Report& report : reports) {
    const bool says_more = told == nullptr || report.failure < told->failure;
    if (report.failure != 0 && says_more) told = &report;
  }
  return told == nullptr ? Status::Ok() : Status(static_cast<StatusCode>(told->code), told->text);
}

// What rank 0 has goes to all.
Status ShareId(NcclUniqueId* id, Communicator* transport, Wait* wait) {
  std::vector<Transfer> sends, receives;
  if (transport->rank() != 0) receives.push_back({0, id, sizeof(*id)});
  for (int peer = 1; transport->rank() == 0 && peer < transport->size(); ++peer) {
    sends.push_back({peer, id, sizeof(*id)});
  }
  return transport->Exchange(sends, receives, wait);
}

const char* AdviceFor(NcclResult result) {
  switch (result) {
    case NcclResult::kUnhandledCudaError:
      return "Check that this GPU is present and has free memory (nvidia-smi), and that no two "
             "ranks use it.";
    case NcclResult::kSystemError:
      return "Check the network between the hosts, and set its interface with "
             "--network-interfaces; NCCL_DEBUG=INFO logs what NCCL tried.";
    case NcclResult::kRemoteError:
      return "Another rank has failed: see the logs of the others for the first failure.";
    default:
      return "Set NCCL_DEBUG=INFO for details.";
  }
}

NcclResult FirstError(NcclResult so_far, NcclResult next) {
  const bool fine = so_far == NcclResult::kSuccess || so_far == NcclResult::kInProgress;
  return fine ? next : so_far;
}

// All messages at once, so that none waits for another.
NcclResult Grouped(NcclApi* nccl, const std::vector<Transfer>& sends,
                   const std::vector<Transfer>& receives, NcclHandle handle, CudaStream stream) {
  NcclResult result = nccl->GroupStart();
  for (const Transfer& send : sends) {
    if (send.bytes == 0) continue;
    result = FirstError(result, nccl->Send(send.data, static_cast<size_t>(send.bytes),
                                           NcclType::kUint8, send.peer, handle, stream));
  }
  for (const Transfer& receive : receives) {
    if (receive.bytes == 0) continue;
    result = FirstError(result, nccl->Receive(receive.data, static_cast<size_t>(receive.bytes),
                                              NcclType::kUint8, receive.peer, handle, stream));
  }
  return FirstError(result, nccl->GroupEnd());  // also after an error: a group must end
}

}  // namespace

NcclRanks::NcclRanks(NcclApi* nccl, std::string gpu, const Topology& topology)
    : nccl_(nccl), gpu_(std::move(gpu)), topology_(topology) {}

NcclRanks::~NcclRanks() {
  Abort(Status(StatusCode::kFailedPrecondition, "the NCCL communicator has been aborted"));
}

Status NcclRanks::Agree(const Status& own, Communicator* transport, Wait* wait) {
  return AgreeOn(own.ok() ? kNone : kCause, own, transport, wait);
}

Status NcclRanks::Open(NcclApi* nccl, const std::string& gpu, const EngineConfig& joining,
                       Communicator* transport, Wait* wait, std::unique_ptr<NcclRanks>* ranks) {
  std::unique_ptr<NcclRanks> made(new NcclRanks(nccl, gpu, transport->topology()));
  NcclUniqueId id = {};
  const auto begin = [&] {
    return transport->rank() == 0 ? nccl->GetUniqueId(&id) : NcclResult::kSuccess;
  };
  Status status = made->Run(begin, "begin", wait);
  TFDIST_RETURN_IF_ERROR(AgreeOn(made->failure_, status, transport, wait));
  TFDIST_RETURN_IF_ERROR(ShareId(&id, transport, wait));
  Wait others(joining, made->topology_, [wait] { return wait->Describe(); });
  const auto join = [&] {
    return nccl->Init(&made->handle_, made->topology_.size, id, transport->rank());
  };
  status = made->Run(join, "join the others", &others);
  TFDIST_RETURN_IF_ERROR(AgreeOn(made->failure_, status, transport, wait));
  *ranks = std::move(made);
  return Status::Ok();
}

Status NcclRanks::Run(const NcclCall& call, const char* what, Wait* wait) {
  NcclResult result;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TFDIST_RETURN_IF_ERROR(end_);
    result = call();
  }
  return Settle(result, what, wait);
}

// Waits until the call that returned `result` is in its stream.
Status NcclRanks::Settle(NcclResult result, const char* what, Wait* wait) {
  wait->Begin();
  while (result == NcclResult::kInProgress) {
    const Status status = wait->Pause(topology_, Nobody);
    std::lock_guard<std::mutex> lock(mutex_);
    TFDIST_RETURN_IF_ERROR(end_);
    if (!status.ok()) {
      end_ = Status(status.code(), Self() + " could not " + what + " by " + nccl_->Describe() +
                                       " in time: " + status.message());
      failure_ = kWaitedInVain;
      AbortLocked();
      return end_;
    }
    const NcclResult asked = nccl_->GetAsyncError(handle_, &result);
    if (asked != NcclResult::kSuccess) result = asked;
  }
  if (result == NcclResult::kSuccess) return Status::Ok();
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  return Fail(result, what, *wait);
}

// "rank 1 (host a, GPU 3: NVIDIA H200)"
std::string NcclRanks::Self() const {
  std::string text = RankListWithHosts(topology_, {topology_.rank});
  text.pop_back();
  return text + ", " + gpu_ + ")";
}

Status NcclRanks::Fail(NcclResult result, const char* what, const Wait& wait) {
  const bool peer = result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
  end_ =
      Status(peer ? StatusCode::kUnavailable : StatusCode::kInternal,
             Self() + " could not " + what + " in " + wait.Describe() + ": " + nccl_->Describe() +
                 " says: " + nccl_->ErrorText(result, handle_) + ". " + AdviceFor(result));
  failure_ = result == NcclResult::kRemoteError ? kFollowed : kCause;
  AbortLocked();
  return end_;
}

void NcclRanks::AbortLocked() {
  // Its result would tell nothing new: the communicator is gone whatever it is.
  if (handle_ != nullptr) static_cast<void>(nccl_->Abort(handle_));
  handle_ = nullptr;
}

void NcclRanks::Abort(const Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (end_.ok()) end_ = why;
  AbortLocked();
}

Status NcclRanks::AllReduce(const void* source, void* target, size_t count, NcclType type,
                            NcclOperator op, CudaStream stream, Wait* wait) {
  const auto call = [&] {
    return nccl_->AllReduce(source, target, count, type, op, handle_, stream);
  };
  return Run(call, "allreduce", wait);
}

Status NcclRanks::Broadcast(const void* source, void* target, size_t count, NcclType type, int root,
                            CudaStream stream, Wait* wait) {
  const auto call = [&] {
    return nccl_->Broadcast(source, target, count, type, root, handle_, stream);
  };
  return Run(call, "broadcast", wait);
}

Status NcclRanks::ReduceScatter(const void* source, void* target, size_t target_count,
                                NcclType type, NcclOperator op, CudaStream stream, Wait* wait) {
  const auto call = [&] {
    return nccl_->ReduceScatter(source, target, target_count, type, op, handle_, stream);
  };
  return Run(call, "reduce and scatter", wait);
}

Status NcclRanks::AllGather(const void* source, void* target, size_t source_count, NcclType type,
                            CudaStream stream, Wait* wait) {
  const auto call = [&] {
    return nccl_->AllGather(source, target, source_count, type, handle_, stream);
  };
  return Run(call, "allgather", wait);
}

Status NcclRanks::Exchange(const std::vector<Transfer>& sends,
                           const std::vector<Transfer>& receives, CudaStream stream, Wait* wait) {
  const auto call = [&] { return Grouped(nccl_, sends, receives, handle_, stream); };
  return Run(call, "exchange messages", wait);
}

Status NcclRanks::Check(const Wait& wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = nccl_->GetAsyncError(handle_, &state);
  if (asked != NcclResult::kSuccess) state = asked;
  const bool fine = state == NcclResult::kSuccess || state == NcclResult::kInProgress;
  return fine ? Status::Ok() : Fail(state, "continue", wait);
}

Status NcclRanks::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

Status NcclRanks::Close(Wait* wait) {
  TFDIST_RETURN_IF_ERROR(Run([this] { return nccl_->Finalize(handle_); }, "end", wait));
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  const NcclResult result = nccl_->Destroy(handle_);
  handle_ = nullptr;
  end_ = Status(StatusCode::kFailedPrecondition, Self() + " has closed its NCCL communicator");
  return result == NcclResult::kSuccess ? Status::Ok() : Fail(result, "end", *wait);
}

}  // namespace tfdist
