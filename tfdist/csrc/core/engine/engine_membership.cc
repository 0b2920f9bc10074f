#include <algorithm>
#include <cstring>
#include <utility>

#include "core/agree/mismatch.h"
#include "core/engine/argument.h"
#include "core/engine/engine.h"
#include "core/watch/stopwatch.h"
#include "core/watch/timeline.h"
#include "core/wire/wait.h"

// Who takes part in an engine's calls, beside core/engine/engine.cc: ranks that join, process sets,
// and the survivors of a loss.
namespace tfdist {

Status Engine::Join(int* last) {
  Call call = CallOf(Operation::kJoin);
  call.weight = 0;  // counts what this rank has taken part in, so that the least is who came last
  return Run(&call, nullptr, [&](const Agreed& agreed) {
    while (!agreed.agreement->AllJoined()) {
      TFDIST_RETURN_IF_ERROR(TakePart(*agreed.agreement));
      ++call.weight;
      Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
      TFDIST_RETURN_IF_ERROR(Agree(call, &wait, agreed.agreement));
    }
    const auto& served = agreed.agreement->weights;
    const auto latest = std::min_element(served.rbegin(), served.rend());
    *last = communicator_->topology().world_ranks[served.rend() - latest - 1];
    return Status::Ok();
  });
}

Status Engine::TakePart(const Agreement& agreement) {
  ReceivedCall received;
  TFDIST_RETURN_IF_ERROR(Decode(agreement.record, &received));
  Wait wait(config_, communicator_->topology(),
            [&] { return TitleOf(received.call) + " after its join"; });
  wait.Record(trace_.current());
  return ContributeZeros(&received, agreement, &wait);
}

Status Engine::ContributeZeros(ReceivedCall* received, const Agreement& agreement, Wait* wait) {
  const Call& call = received->call;
  FusedCollective fused(call, communicator_.get(), host_, wait, &buffers_);
  std::vector<int64_t> rows;
  if (call.operation == Operation::kAllgather) {
    for (TensorView& tensor : received->tensors) tensor.shape[0] = 0;
    bool equal_rows = false;
    TFDIST_RETURN_IF_ERROR(fused.GatherRows(&equal_rows, &rows));
    const bool refused = equal_rows && !CompareRows(TitleOf(call), call, rows).ok();
    if (refused) return Status::Ok();  // as an error of the others, who do no more
  }
  if (call.on_gpu) return ContributeZerosOnGpu(rows, agreement, received, wait);
  if (call.operation == Operation::kAllgather) {
    const auto nowhere = [](int, const std::vector<int64_t>&, TensorView*) {
      return Status(StatusCode::kResourceExhausted, "a rank that has joined keeps no result");
    };
    const Status status = fused.Allgather(rows, nowhere);
    return status.code() == StatusCode::kResourceExhausted ? Status::Ok() : status;
  }
  if (call.operation != Operation::kAllreduce) return Status::Ok();  // a barrier
  TFDIST_RETURN_IF_ERROR(fused.Prepare());
  // Each begins where an element of any dtype may.
  const auto aligned_bytes = [](const TensorView& tensor) {
    constexpr int64_t kAlignment = alignof(double);
    return (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  };
  int64_t bytes = 0;
  for (const TensorView& tensor : received->tensors) bytes += aligned_bytes(tensor);
  TFDIST_RETURN_IF_ERROR(zeros_.Reserve(bytes));
  if (bytes > 0) std::memset(zeros_.data(), 0, static_cast<size_t>(bytes));
  char* next = zeros_.data();
  for (TensorView& tensor : received->tensors) {
    tensor.data = next;
    next += aligned_bytes(tensor);
  }
  return fused.Allreduce(agreement, received->tensors);
}

// The others have memory, so that this rank's lack of it is told when they wait for its part.
Status Engine::ContributeZerosOnGpu(const std::vector<int64_t>& rows, const Agreement& agreement,
                                    ReceivedCall* received, Wait* wait) {
  Call& call = received->call;
  OnGpu here;
  here.number = -1;
  here.done = [](const Status&) {};
  call.error = PrepareDevice(here, &call);
  const double share = FusedCollective::ShareOf(call, agreement, communicator_->rank());
  return RunOnDevice(call, here, wait, [&](Device* device) {
    if (call.operation == Operation::kAllgather) {
      return device->Allgather(call, rows, {}, Device::Made(), wait);
    }
    return device->Allreduce(call, share, {}, Device::Made(), wait);
  });
}

Status Engine::AddProcessSet(const std::vector<int>& ranks, int process_set,
                             std::shared_ptr<Engine>* engine) {
  const Turn turn(this, nullptr);
  const Stopwatch stopwatch(&busy_ns_);
  TFDIST_RETURN_IF_ERROR(CheckUsable());
  Call call = CallOf(Operation::kAddProcessSet);
  call.error = CheckRanks(ranks, communicator_->size());
  if (call.error.empty()) call.name = RankList(ranks);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  const int channel = kChannels * process_set;
  const bool included = std::count(ranks.begin(), ranks.end(), communicator_->rank()) > 0;
  if (call.error.empty() && included) call.error = communicator_->CheckSubset(channel).message();
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  engine->reset();
  std::unique_ptr<Communicator> subset;
  if (included) call.error = communicator_->Subset(ranks, channel, &wait, &subset).message();
  // Once more: that the members have not connected is an error of all, who count sets alike. After
  // a failure of the transport this is what returns it.
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  if (!included) return Status::Ok();
  *engine = std::make_shared<Engine>(std::move(subset), config_, process_set);
  TFDIST_RETURN_IF_ERROR((*engine)->Open());
  (*engine)->Take(tuning_);
  return Status::Ok();
}

Status Engine::RemoveProcessSet(int process_set) {
  Call call = CallOf(Operation::kRemoveProcessSet, std::to_string(process_set));
  return Run(&call, nullptr);
}

void Engine::Part() {
  const Turn turn(this, nullptr);
  if (CheckUsable().ok()) {
    static_cast<void>(
        Keep(Status(StatusCode::kUnavailable,
                    RankListWithHosts(communicator_->topology(), {communicator_->rank()}) +
                        " continues with other ranks; this collective was submitted before.")));
  }
  static_cast<void>(communicator_->Finalize(/*clean=*/false));
}

Status Engine::Meet(const Membership& membership, std::shared_ptr<Engine>* next) {
  EngineConfig config = config_;
  config.monitor = nullptr;  // the ranks are counted anew
  std::unique_ptr<Communicator> communicator;
  TFDIST_RETURN_IF_ERROR(MakeCommunicator("socket", config, membership, &communicator));
  auto engine = std::make_shared<Engine>(std::move(communicator), config);
  TFDIST_RETURN_IF_ERROR(engine->Open());
  config_.timeline->Renumber(engine->communicator_->rank(), engine->communicator_->size());
  *next = std::move(engine);
  return Status::Ok();
}

}  // namespace tfdist
