#include "core/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/argument.h"
#include "core/stopwatch.h"
#include "core/wait.h"

namespace tfdist {
namespace {

std::string PlaceOf(const Topology& topology, int process_set) {
  if (process_set == 0) return "";
  return " in process set " + std::to_string(process_set) + " (" + RankList(topology.world_ranks) +
         ")";
}

// Whether zeros from the ranks that have joined leave the meaning of `call` as it is.
bool TakesZeros(const Call& call) {
  switch (call.operation) {
    case Operation::kAllgather:  // no rows
    case Operation::kBarrier:
      return true;
    case Operation::kAllreduce:
      return call.reduction == Reduction::kSum || call.reduction == Reduction::kAverage ||
             call.reduction == Reduction::kAdasum;
    default:
      return false;
  }
}

std::vector<int> JoinedRanks(const Agreement& agreement, const Topology& topology) {
  std::vector<int> ranks;
  for (size_t r = 0; r < agreement.joined.size(); ++r) {
    if (agreement.joined[r] == 1) ranks.push_back(topology.world_ranks[r]);
  }
  return ranks;
}

}  // namespace

Engine::Engine(std::unique_ptr<Communicator> communicator, const EngineConfig& config,
               int process_set)
    : communicator_(std::move(communicator)),
      config_(config),
      process_set_(process_set),
      place_(PlaceOf(communicator_->topology(), process_set)) {}

Status Engine::Open() {
  std::lock_guard<std::mutex> lock(mutex_);
  Wait wait(config_, communicator_->topology(), [] { return std::string("init"); });
  return Keep(OpenHost(config_, 2 * process_set_ + 1, communicator_.get(), &wait, &host_));
}

// Keeps an error after which the communicator cannot be used.
Status Engine::Keep(const Status& status) {
  const StatusCode code = status.code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
      code == StatusCode::kInternal) {
    end_ = status;
    if (host_.window != nullptr) host_.window->GiveUp();
  }
  return status;
}

std::string Engine::TitleOf(const Call& call) const { return Title(call) + place_; }

Status Engine::Agree(const Call& call, Wait* wait, Agreement* agreement) {
  const Status status = header_check_.Agree(call, communicator_.get(), wait, agreement);
  const bool about_call = status.code() == StatusCode::kFailedPrecondition ||
                          status.code() == StatusCode::kInvalidArgument;
  if (!place_.empty() && about_call) {
    return Status(status.code(), status.message() + " This was" + place_ + ".");
  }
  TFDIST_RETURN_IF_ERROR(Keep(status));
  if (!agreement->AnyJoined() || agreement->AllJoined()) return Status::Ok();
  ReceivedCall received;
  const Call* submitted = &call;
  if (call.operation == Operation::kJoin) {
    TFDIST_RETURN_IF_ERROR(Keep(Decode(agreement->record, &received)));
    submitted = &received.call;
  }
  if (TakesZeros(*submitted)) return Status::Ok();
  const std::string how = submitted->operation == Operation::kAllreduce
                              ? std::string(" by ") + NameOf(submitted->reduction)
                              : std::string();
  return Status(StatusCode::kFailedPrecondition,
                TitleOf(*submitted) + how + " ran after " +
                    RankList(JoinedRanks(*agreement, communicator_->topology())) +
                    " had joined, and zeros from there would change its meaning. Until all ranks "
                    "have joined, only allreduce by sum, average or adasum, allgather and barrier "
                    "may run.");
}

Call Engine::CallOf(Operation operation, const AllreduceOptions& options,
                    const std::vector<TensorView>& tensors) const {
  Call call;
  call.operation = operation;
  call.name = options.name;
  call.reduction = options.reduction;
  call.compression = options.compression;
  call.prescale = options.prescale;
  call.postscale = options.postscale;
  call.weighted = options.weighted;
  call.weight = options.weight;
  call.fusion_threshold_bytes = config_.fusion_threshold_bytes;
  call.tensor_names = &options.tensor_names;
  call.tensors = &tensors;
  return call;
}

Status Engine::Allreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call = CallOf(Operation::kAllreduce, options, inputs);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  FusedCollective fused(call, communicator_.get(), host_, &wait, &buffers_);
  call.error = CheckAllreduce(options, inputs, outputs);
  if (call.error.empty()) call.error = fused.Prepare().message();
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  return Keep(fused.Allreduce(agreement, outputs));
}

Status Engine::ReduceScatter(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                             const std::vector<TensorView>& outputs) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call = CallOf(Operation::kReduceScatter, options, inputs);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  FusedCollective fused(call, communicator_.get(), host_, &wait, &buffers_);
  call.error = CheckReduceScatter(options, inputs, outputs, communicator_->topology());
  if (call.error.empty()) call.error = fused.Prepare().message();
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  return Keep(fused.ReduceScatter(agreement, outputs));
}

Status Engine::Broadcast(const BroadcastOptions& options, const std::vector<TensorView>& tensors) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kBroadcast;
  call.name = options.name;
  call.root = options.root;
  call.fusion_threshold_bytes = config_.fusion_threshold_bytes;
  call.tensor_names = &options.tensor_names;
  call.tensors = &tensors;
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  FusedCollective fused(call, communicator_.get(), host_, &wait, &buffers_);
  call.error = CheckBroadcast(options, tensors, communicator_->topology());
  if (call.error.empty()) call.error = fused.Prepare().message();
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  return Keep(fused.Broadcast());
}

Status Engine::Allgather(const GatherOptions& options, const std::vector<TensorView>& inputs,
                         const Allocate& allocate, std::vector<int64_t>* rows) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  std::vector<TensorView> tensors = inputs;
  for (TensorView& tensor : tensors) {
    if (tensor.shape.empty()) tensor.shape = {1};
  }
  Call call;
  call.operation = Operation::kAllgather;
  call.name = options.name;
  call.tensor_names = &options.tensor_names;
  call.tensors = &tensors;
  call.error = CheckAllgather(options, tensors);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  FusedCollective fused(call, communicator_.get(), host_, &wait, &buffers_);
  return Keep(fused.Allgather(allocate, rows));
}

Status Engine::Alltoall(const std::string& name, const TensorView& input,
                        const std::vector<int64_t>& splits, const Allocate& allocate,
                        std::vector<int64_t>* received) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  const std::vector<std::string> tensor_names = {name};
  const std::vector<TensorView> tensors = {input};
  Call call;
  call.operation = Operation::kAlltoall;
  call.name = name;
  call.tensor_names = &tensor_names;
  call.tensors = &tensors;
  const int size = communicator_->size();
  call.error = CheckAlltoall(name, input, splits, size);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  const std::vector<int64_t> equal(static_cast<size_t>(size), input.shape[0] / size);
  FusedCollective fused(call, communicator_.get(), host_, &wait, &buffers_);
  return Keep(fused.Alltoall(splits.empty() ? equal : splits, allocate, received));
}

Status Engine::Barrier(const std::string& name) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kBarrier;
  call.name = name;
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  Agreement agreement;
  return Agree(call, &wait, &agreement);  // with every rank's header all are known to be here
}

Status Engine::Join(int* last) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kJoin;
  call.weight = 0;  // counts what this rank has taken part in, so that the least is who came last
  while (true) {
    Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
    Agreement agreement;
    TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
    if (agreement.AllJoined()) {
      const auto& served = agreement.weights;
      const auto latest = std::min_element(served.rbegin(), served.rend());
      *last = communicator_->topology().world_ranks[served.rend() - latest - 1];
      return Status::Ok();
    }
    TFDIST_RETURN_IF_ERROR(TakePart(agreement));
    ++call.weight;
  }
}

Status Engine::TakePart(const Agreement& agreement) {
  ReceivedCall received;
  TFDIST_RETURN_IF_ERROR(Keep(Decode(agreement.record, &received)));
  Wait wait(config_, communicator_->topology(),
            [&] { return TitleOf(received.call) + " after its join"; });
  return Keep(ContributeZeros(&received, agreement, &wait));
}

Status Engine::ContributeZeros(ReceivedCall* received, const Agreement& agreement, Wait* wait) {
  const Call& call = received->call;
  FusedCollective fused(call, communicator_.get(), host_, wait, &buffers_);
  if (call.operation == Operation::kAllgather) {
    for (TensorView& tensor : received->tensors) tensor.shape[0] = 0;
    std::vector<int64_t> rows;
    const auto nowhere = [](int, const std::vector<int64_t>&, TensorView*) {
      return Status(StatusCode::kResourceExhausted, "a rank that has joined keeps no result");
    };
    const Status status = fused.Allgather(nowhere, &rows);
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

Status Engine::AddProcessSet(const std::vector<int>& ranks, int process_set,
                             std::shared_ptr<Engine>* engine) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kAddProcessSet;
  call.error = CheckRanks(ranks, communicator_->size());
  if (call.error.empty()) call.name = RankList(ranks);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  std::unique_ptr<Communicator> subset;
  const bool included = std::count(ranks.begin(), ranks.end(), communicator_->rank()) > 0;
  if (call.error.empty() && included) {
    call.error = communicator_->Subset(ranks, 2 * process_set, &subset).message();
  }
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  engine->reset();
  if (!included) return Status::Ok();
  *engine = std::make_shared<Engine>(std::move(subset), config_, process_set);
  return (*engine)->Open();
}

Status Engine::RemoveProcessSet(int process_set) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kRemoveProcessSet;
  call.name = std::to_string(process_set);
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  Agreement agreement;
  return Agree(call, &wait, &agreement);
}

Status Engine::Shutdown() {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kShutdown;
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(call); });
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait, &agreement));
  end_ = Status(StatusCode::kFailedPrecondition,
                "tfdist has been shut down on this rank. Call init() before further collectives.");
  return communicator_->Finalize(/*clean=*/true);
}

}  // namespace tfdist
