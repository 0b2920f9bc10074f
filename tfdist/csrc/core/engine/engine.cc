#include "core/engine/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/agree/mismatch.h"
#include "core/engine/argument.h"
#include "core/watch/steady_clock.h"
#include "core/watch/stopwatch.h"
#include "core/watch/timeline.h"
#include "core/wire/wait.h"

namespace tfdist {
namespace {

// Of the kChannels that each process set has.
constexpr int kHostChannel = 1;
constexpr int kDeviceChannel = 2;  // and 3

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

Call CallOf(Operation operation, const AllreduceOptions& options,
            const std::vector<TensorView>& tensors) {
  Call call = CallOf(operation, options.name, &options.tensor_names, &tensors);
  call.reduction = options.reduction;
  call.compression = options.compression;
  call.prescale = options.prescale;
  call.postscale = options.postscale;
  call.weighted = options.weighted;
  call.weight = options.weight;
  return call;
}

// The others are on their way to the device's collective already.
Status Missing(const Status& allocated) {
  if (allocated.ok()) return allocated;
  return Status(StatusCode::kInternal, "no memory for a result: " + allocated.message());
}

Device::Made MadeOf(const OnGpu& gpu) { return {gpu.stream, gpu.mark}; }

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
      config_(Instrumented(config)),
      process_set_(process_set),
      place_(PlaceOf(communicator_->topology(), process_set)),
      tuning_{config.fusion_threshold_bytes, 0, config.hierarchy},
      trace_(config_.timeline.get(), process_set) {}

Engine::Turn::Turn(Engine* engine, const OnGpu* gpu, int64_t place) : engine_(engine), gpu_(gpu) {
  if (gpu != nullptr) place = gpu->place;
  engine->turnstile_.Enter(place >= 0 ? place : engine->turnstile_.Announce());
  engine->trace_.Begin();
}

Engine::Turn::~Turn() {
  if (gpu_ != nullptr && gpu_->mark != nullptr) engine_->device_->Forget(gpu_->mark);
  engine_->trace_.End();
  engine_->metered_.End();
  engine_->config_.monitor->Leave(engine_->process_set_, /*failed=*/false);
  engine_->turnstile_.Leave();
}

void Engine::Announce(OnGpu* gpu) {
  gpu->place = turnstile_.Announce();
  Mark(gpu);
}

void Engine::Mark(OnGpu* gpu) {
  Device* const device = connected_;
  // A mark that cannot be made is made, and its error told, when the call comes.
  if (device == nullptr || !device->Mark(gpu->stream, &gpu->mark).ok()) gpu->mark = nullptr;
}

void Engine::Forget(OnGpu* gpu) {
  if (gpu->mark != nullptr) connected_.load()->Forget(gpu->mark);
  gpu->mark = nullptr;
}

Status Engine::Open() {
  const Turn turn(this, nullptr);
  Wait wait(config_, communicator_->topology(), [] { return std::string("init"); });
  TFDIST_RETURN_IF_ERROR(Keep(OpenHost(config_, kChannels * process_set_ + kHostChannel,
                                       communicator_.get(), &wait, &host_)));
  header_check_.MeetIn(host_.board.get());
  if (process_set_ != 0) return Status::Ok();
  return Keep(OpenMonitor(config_, host_, communicator_.get(), &wait));
}

// Keeps an error after which the communicator cannot be used.
Status Engine::Keep(const Status& status) {
  const StatusCode code = status.code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
      code == StatusCode::kInternal) {
    end_ = status;
    trace_.Fail();
    config_.monitor->Leave(process_set_, /*failed=*/true);  // before others see it give up
    if (host_.board != nullptr) host_.board->GiveUp();
    // Ranks of other hosts may be past their own window, and wait for this one alone.
    if (host_.peers != nullptr) static_cast<void>(host_.peers->Finalize(/*clean=*/false));
    if (device_ != nullptr) device_->Abort();
  }
  return status;
}

std::string Engine::TitleOf(const Call& call) const { return Title(call) + place_; }

Status Engine::Agree(const Call& call, Wait* wait, Agreement* agreement) {
  CollectiveCost* const cost = &config_.meter->of(call.operation);
  metered_.Begin(call, cost);
  const int64_t number = header_check_.calls() + 1;
  const Activity own =
      config_.monitor->Enter(process_set_, ShortTitle(call) + place_, number, call.on_gpu);
  wait->SetCall(own, last_, cost);
  wait->Record(trace_.Meet(call, number));
  header_check_.SetClock(config_.timeline->offset_ns());
  const Status status = header_check_.Agree(call, communicator_.get(), wait, agreement);
  trace_.Met(status.ok());
  last_ = own;
  last_.since_ns = SteadyNs();
  // What another rank called there may have had another name.
  if (!status.ok() || agreement->AnyJoined()) last_.SetTitle("");
  const bool about_call = status.code() == StatusCode::kFailedPrecondition ||
                          status.code() == StatusCode::kInvalidArgument;
  if (about_call) config_.monitor->Leave(process_set_, /*failed=*/true);
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
                    " had joined, but zeros from them would change its result. Until all ranks "
                    "have joined, only allreduce by sum, average or adasum, allgather and barrier "
                    "may run.");
}

// In the turn of the call, from the check of this rank's arguments, which `call->error` has, to its
// end. Errors of `body` are kept.
Status Engine::Run(Call* call, const OnGpu* gpu, const Body& body, int64_t place) {
  const Turn turn(this, gpu, place);
  const Stopwatch stopwatch(&busy_ns_);
  TFDIST_RETURN_IF_ERROR(CheckUsable());
  if (TravelsInBuckets(call->operation)) {
    call->fusion_threshold_bytes = tuning_.fusion_threshold_bytes;
  }
  Wait wait(config_, communicator_->topology(), [&] { return TitleOf(*call); });
  FusedCollective fused(*call, communicator_.get(), host_, &wait, &buffers_);
  if (gpu != nullptr) {
    call->error = PrepareDevice(*gpu, call);
  } else if (call->error.empty()) {
    call->error = fused.Prepare().message();
  }
  Agreement agreement;
  TFDIST_RETURN_IF_ERROR(Agree(*call, &wait, &agreement));
  return Keep(body({&fused, &agreement, &wait}));
}

Status Engine::Allreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs, const OnGpu* gpu) {
  Call call = CallOf(Operation::kAllreduce, options, inputs);
  call.error = CheckAllreduce(options, inputs, outputs);
  const auto body = [&](const Agreed& agreed) {
    if (gpu == nullptr) return agreed.fused->Allreduce(*agreed.agreement, outputs);
    const double share = FusedCollective::ShareOf(call, *agreed.agreement, communicator_->rank());
    return RunOnDevice(call, *gpu, agreed.wait, [&](Device* device) {
      return device->Allreduce(call, share, outputs, MadeOf(*gpu), agreed.wait);
    });
  };
  return Run(&call, gpu, body, options.place);
}

Status Engine::ReduceScatter(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                             const std::vector<TensorView>& outputs, const OnGpu* gpu) {
  Call call = CallOf(Operation::kReduceScatter, options, inputs);
  call.error = CheckReduceScatter(options, inputs, outputs, communicator_->topology());
  return Run(&call, gpu, [&](const Agreed& agreed) {
    if (gpu == nullptr) return agreed.fused->ReduceScatter(*agreed.agreement, outputs);
    return RunOnDevice(call, *gpu, agreed.wait, [&](Device* device) {
      return device->ReduceScatter(call, outputs, MadeOf(*gpu), agreed.wait);
    });
  });
}

Status Engine::Broadcast(const BroadcastOptions& options, const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs, const OnGpu* gpu) {
  const Topology& topology = communicator_->topology();
  Call call = CallOf(Operation::kBroadcast, options.name, &options.tensor_names, &inputs);
  call.root = options.root;
  call.error = CheckBroadcast(options, inputs, outputs, topology);
  return Run(&call, gpu, [&](const Agreed& agreed) {
    const std::vector<int>& ranks = topology.world_ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), options.root);
    const int root = static_cast<int>(found - ranks.begin());
    if (gpu == nullptr) return agreed.fused->Broadcast(root, outputs);
    return RunOnDevice(call, *gpu, agreed.wait, [&](Device* device) {
      return device->Broadcast(call, root, outputs, MadeOf(*gpu), agreed.wait);
    });
  });
}

Status Engine::Allgather(const GatherOptions& options, const std::vector<TensorView>& inputs,
                         const Allocate& allocate, std::vector<int64_t>* rows, const OnGpu* gpu) {
  std::vector<TensorView> tensors = inputs;
  for (TensorView& tensor : tensors) {
    if (tensor.shape.empty()) tensor.shape = {1};
  }
  Call call = CallOf(Operation::kAllgather, options.name, &options.tensor_names, &tensors);
  call.error = CheckAllgather(options, tensors);
  return Run(&call, gpu, [&](const Agreed& agreed) {
    bool equal_rows = options.equal_rows;
    TFDIST_RETURN_IF_ERROR(agreed.fused->GatherRows(&equal_rows, rows));
    if (equal_rows) TFDIST_RETURN_IF_ERROR(CompareRows(TitleOf(call), call, *rows));
    if (gpu == nullptr) return agreed.fused->Allgather(*rows, allocate);
    const size_t size = static_cast<size_t>(communicator_->size());
    std::vector<TensorView> outputs(tensors.size());
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::vector<int64_t> shape = tensors[t].shape;
      shape[0] =
          std::accumulate(rows->begin() + t * size, rows->begin() + (t + 1) * size, int64_t{0});
      TFDIST_RETURN_IF_ERROR(Missing(allocate(static_cast<int>(t), shape, &outputs[t])));
    }
    return RunOnDevice(call, *gpu, agreed.wait, [&](Device* device) {
      return device->Allgather(call, *rows, outputs, MadeOf(*gpu), agreed.wait);
    });
  });
}

Status Engine::Alltoall(const std::string& name, const TensorView& input,
                        const std::vector<int64_t>& splits, const Allocate& allocate,
                        std::vector<int64_t>* received, const OnGpu* gpu) {
  const std::vector<std::string> tensor_names = {name};
  const std::vector<TensorView> tensors = {input};
  const int size = communicator_->size();
  Call call = CallOf(Operation::kAlltoall, name, &tensor_names, &tensors);
  call.error = CheckAlltoall(name, input, splits, size);
  return Run(&call, gpu, [&](const Agreed& agreed) {
    const std::vector<int64_t> equal(static_cast<size_t>(size), input.shape[0] / size);
    const std::vector<int64_t>& sent = splits.empty() ? equal : splits;
    TFDIST_RETURN_IF_ERROR(agreed.fused->GatherSplits(sent, received));
    if (gpu == nullptr) return agreed.fused->Alltoall(sent, *received, allocate);
    TensorView output;
    std::vector<int64_t> shape = input.shape;
    shape[0] = std::accumulate(received->begin(), received->end(), int64_t{0});
    TFDIST_RETURN_IF_ERROR(Missing(allocate(0, shape, &output)));
    return RunOnDevice(call, *gpu, agreed.wait, [&](Device* device) {
      return device->Alltoall(call, sent, *received, output, MadeOf(*gpu), agreed.wait);
    });
  });
}

Status Engine::Precede(const OnGpu& gpu) {
  const Turn turn(this, &gpu);
  // First, whatever has happened: collectives work on memory that the stream may get next.
  const bool joined = device_ != nullptr && device_->joined();
  const Status waits = joined ? device_->Precede(gpu.stream) : Status::Ok();
  TFDIST_RETURN_IF_ERROR(CheckUsable());
  return Keep(waits);
}

Status Engine::Barrier(const std::string& name) {
  Call call = CallOf(Operation::kBarrier, name);
  return Run(&call, nullptr);  // with every rank's header all are known to be here
}

Status Engine::CheckRanksOfHost() const {
  if (host_.board == nullptr) return Status::Ok();
  std::vector<int> ended = host_.board->EndedRanks();
  for (int rank = 0; rank < host_.board->size() && ended.empty(); ++rank) {
    if (host_.board->HasGivenUp(rank)) ended.push_back(rank);
  }
  if (ended.empty()) return Status::Ok();
  return Status(StatusCode::kUnavailable, RankListWithHosts(host_.topology, ended) +
                                              " ended or failed before the collective finished. "
                                              "See the first error in the output of the job.");
}

// For the thread of the device: later calls fail too, also where nobody has looked at this one.
void Engine::Remember(const Status& late) {
  std::lock_guard<std::mutex> lock(late_mutex_);
  if (late_.ok()) late_ = late;
  if (host_.board != nullptr) host_.board->GiveUp();
}

// Ok while calls can run.
Status Engine::CheckUsable() {
  TFDIST_RETURN_IF_ERROR(end_);
  Status late;
  {
    std::lock_guard<std::mutex> lock(late_mutex_);
    late = late_;
  }
  return Keep(late);
}

// Makes the device ready for `call`, which is on a GPU from now on. Returns an error of its own, or
// the one that was found before.
std::string Engine::PrepareDevice(const OnGpu& gpu, Call* call) {
  call->on_gpu = true;
  call->hierarchy = tuning_.hierarchy;
  if (!call->error.empty()) return call->error;
  if (device_ == nullptr) {
    const auto check = [this] { return CheckRanksOfHost(); };
    const Status made = MakeDevice({config_, communicator_->topology(),
                                    kChannels * process_set_ + kDeviceChannel, gpu.number, check},
                                   &device_);
    if (!made.ok()) return TitleOf(*call) + ": " + made.message();
  }
  const int number = device_->number();
  if (number >= 0 && gpu.number >= 0 && gpu.number != number) {
    return TitleOf(*call) + " has tensors on GPU " + std::to_string(gpu.number) +
           "; expected GPU " + std::to_string(number) +
           ", as in earlier calls. A rank uses one GPU: let tfdist.init() choose it, or with "
           "PyTorch torch.cuda.set_device(hvd.local_rank()).";
  }
  const Status prepared = device_->Prepare(*call);
  return prepared.ok() ? "" : TitleOf(*call) + ": " + prepared.message();
}

// Its errors are the caller's to keep.
Status Engine::RunOnDevice(const Call& call, const OnGpu& gpu, Wait* wait,
                           const OnDevice& collective) {
  if (device_ == nullptr || (device_->joined() && !call.error.empty())) {
    return Status(StatusCode::kInternal, call.error);
  }
  if (!device_->joined()) {
    const StatusCode code = call.error.empty() ? StatusCode::kOk : StatusCode::kInvalidArgument;
    TFDIST_RETURN_IF_ERROR(device_->Join(Status(code, call.error), communicator_.get(), wait));
    connected_ = device_.get();
  }
  Status status = collective(device_.get());
  if (status.ok() && gpu.precedes) status = device_->Precede(gpu.stream);
  // The others are on their way: no error leaves this rank in step with them.
  if (status.code() != StatusCode::kUnavailable && status.code() != StatusCode::kDeadlineExceeded &&
      !status.ok()) {
    status = Status(StatusCode::kInternal, status.message());
  }
  TFDIST_RETURN_IF_ERROR(status);
  device_->WhenDone(TitleOf(call), [this, done = gpu.done, waited_ns = gpu.waited_ns,
                                    started = trace_.Started()](const Status& late) {
    if (!late.ok()) Remember(late);
    done(late);
    config_.timeline->AddDevice(started, late.ok(), waited_ns ? waited_ns() : -1);
  });
  return Status::Ok();
}

Status Engine::Tune(const Tuning& tuning) {
  Call call = CallOf(tuning, {MostChunkBytes(), config_.hierarchy});
  return Run(&call, nullptr, [&](const Agreed&) {
    // With every rank's header none is in a collective, so nobody reads what was shown before.
    Take(tuning);
    return Status::Ok();
  });
}

void Engine::Finish() {
  const Turn turn(this, nullptr);
  if (device_ != nullptr) device_->Finish();
}

Status Engine::End() {
  const Turn turn(this, nullptr);
  return CheckUsable();
}

Status Engine::Shutdown() {
  Call call = CallOf(Operation::kShutdown);
  Status status;  // not kept: later calls shall say that tfdist has been shut down
  TFDIST_RETURN_IF_ERROR(Run(&call, nullptr, [&](const Agreed& agreed) {
    const Status closed = device_ != nullptr ? device_->Close(agreed.wait) : Status::Ok();
    end_ =
        Status(StatusCode::kFailedPrecondition,
               "tfdist has been shut down on this rank. Call init() before further collectives.");
    const Status ended = communicator_->Finalize(/*clean=*/true);
    status = closed.ok() ? ended : closed;
    return Status::Ok();
  }));
  return status;
}

}  // namespace tfdist
