// Runs collectives over one communicator: ordered, checked on every call, bounded in time.
//
// Every call first compares a 16-byte header with all ranks (sequence number and hash of what was
// submitted). Where the headers differ, full descriptions are gathered and every rank returns the
// same kFailedPrecondition that names the tensor and what each rank submitted; the ranks are then
// in step again and the engine stays usable. Calls run on the caller's thread, one at a time, in
// the order in which they come or were announced. A rank that has joined takes part in what the
// others submit, with zeros. A lost peer or a passed deadline leaves the communicator in an unknown
// state: that call and all later ones return the error.
#ifndef TFDIST_CORE_ENGINE_ENGINE_H_
#define TFDIST_CORE_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/agree/call_record.h"
#include "core/agree/clock_offset.h"
#include "core/agree/header.h"
#include "core/agree/turnstile.h"
#include "core/algorithm/fused_collective.h"
#include "core/algorithm/host.h"
#include "core/engine/device.h"
#include "core/engine/tuning.h"
#include "core/value/call.h"
#include "core/value/compression.h"
#include "core/value/engine_config.h"
#include "core/value/export.h"
#include "core/value/reduction.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/watch/call_trace.h"
#include "core/watch/meter.h"
#include "core/watch/stall_monitor.h"
#include "core/wire/communicator.h"
#include "core/wire/communicator_factory.h"

namespace tfdist {

struct AllreduceOptions {
  std::string name;                       // what the errors call this collective
  std::vector<std::string> tensor_names;  // one a tensor
  Reduction reduction = Reduction::kSum;
  Compression compression = Compression::kNone;
  double prescale = 1.0;   // multiplies each input before the reduction (floating dtypes only)
  double postscale = 1.0;  // multiplies the result
  // With kAverage: whether the ranks count by `weight`, such as the number of their samples,
  // instead of alike. A rank of weight 0 is left out; the average over no weight at all is zeros.
  bool weighted = false;
  uint32_t weight = 1;  // of this rank; may differ by rank
  int64_t place = -1;   // from Engine::Announce() for tensors of the host; -1: behind all up to now
};

struct BroadcastOptions {
  std::string name;
  std::vector<std::string> tensor_names;
  int root = 0;  // by its number among all ranks, also in a process set
};

struct GatherOptions {
  std::string name;
  std::vector<std::string> tensor_names;
  // Refuse with kInvalidArgument, alike on all ranks, unless all give equally many rows of each
  // tensor. One rank that asks for it is enough. `rows` is told even so.
  bool equal_rows = false;
};

// Says that the tensors of a call are in the memory of a GPU. The call then puts its work into
// streams of the GPU and returns.
struct OnGpu {
  int number = 0;  // by the GPU's driver; the same in all calls of an engine
  // What it holds when the call comes makes the inputs.
  void* stream = nullptr;
  // Whether what comes into `stream` after the call waits for the results, on the GPU.
  bool precedes = false;
  // After a call that has returned Ok: called once, from another thread, when the results are
  // there, or with an error when they never will be. It must not keep the engine alive.
  Device::Done done;
  // After `done`, how long somebody has stood still for the results; null: from the beginning.
  std::function<int64_t()> waited_ns;
  // From Engine::Announce: the place of the call among the others, and what `stream` held by then.
  int64_t place = -1;
  void* mark = nullptr;
};

class TFDIST_API Engine {
 public:
  // `process_set` is the number that messages give to the ranks of `communicator`; 0: all ranks.
  Engine(std::unique_ptr<Communicator> communicator, const EngineConfig& config,
         int process_set = 0);

  // Once, before the first collective; all ranks call it. Without it, data goes by messages.
  Status Open();

  const Communicator& communicator() const { return *communicator_; }
  const EngineConfig& config() const { return config_; }

  // All ranks call it: records what their calls do from now on, each rank in a file of its own,
  // until the timeline is stopped. `mark_cycles` marks the moments when all ranks have come.
  Status StartTimeline(const std::string& path, bool mark_cycles);

  // Its process sets and survivors go on with the same.
  Timeline& timeline() const { return *config_.timeline; }

  // Time spent inside calls so far, waiting for peers included. May be read during a call.
  double communication_seconds() const { return static_cast<double>(busy_ns_) * 1e-9; }

  // What collectives have cost so far, those in process sets included. May be read during a call.
  const Meter& meter() const { return *config_.meter; }

  // The tensors of a collective are in the host's memory, or with `gpu` in that of a GPU, alike on
  // all ranks.

  // Gives a call that comes later, perhaps from another thread, its place now: behind all calls up
  // to now and before all that follow, which wait for it. What gpu->stream holds now is from then
  // on all that makes its inputs, so that the computation behind it overlaps with the collective;
  // not before the first call has connected the GPUs. Exactly one collective with `gpu` follows,
  // whose outputs have their memory by now: what used that before is in the stream.
  void Announce(OnGpu* gpu);

  // The same without a place, for a collective that is not ordered yet. It follows, or Forget.
  void Mark(OnGpu* gpu);
  void Forget(OnGpu* gpu);

  // A place for an allreduce of tensors of the host, whose options get it.
  int64_t Announce() { return turnstile_.Announce(); }

  // outputs[i] has dtype and shape of inputs[i] and may be the same memory.
  // kAverage is the sum divided by the number of ranks, with those that have joined; floating
  // dtypes only, as is kAdasum.
  Status Allreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const OnGpu* gpu = nullptr);

  // Reduces as Allreduce, and leaves each rank its rows of the result (OwnRows in
  // fused_collective.h). outputs[i] has that many rows and is not the same memory as inputs[i].
  Status ReduceScatter(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                       const std::vector<TensorView>& outputs, const OnGpu* gpu = nullptr);

  // Into outputs[i], which has the shape of inputs[i] and may be its memory, goes inputs[i] of rank
  // `options.root`.
  Status Broadcast(const BroadcastOptions& options, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const OnGpu* gpu = nullptr);
  Status Broadcast(const BroadcastOptions& options, const std::vector<TensorView>& tensors) {
    return Broadcast(options, tensors, tensors);
  }

  // Concatenates each tensor along dimension 0, which may differ by rank; a scalar counts as shape
  // [1]. `allocate` is called once a tensor, when the shape of the result is known.
  // rows[i * size + r] tells what rank r gave of tensor i.
  Status Allgather(const GatherOptions& options, const std::vector<TensorView>& inputs,
                   const Allocate& allocate, std::vector<int64_t>* rows,
                   const OnGpu* gpu = nullptr);

  // Sends splits[r] rows of `input` to rank r, which gets them after those of the ranks before this
  // one. No splits: equally many rows for each. received[r] tells how many came from rank r.
  Status Alltoall(const std::string& name, const TensorView& input,
                  const std::vector<int64_t>& splits, const Allocate& allocate,
                  std::vector<int64_t>* received, const OnGpu* gpu = nullptr);

  // What comes into gpu.stream from now on waits for all collectives so far, on the GPU; also where
  // an error is returned.
  Status Precede(const OnGpu& gpu);

  Status Barrier(const std::string& name);

  // This rank has nothing left to contribute: until all ranks have joined, it takes part with zeros
  // in what the others submit (sum, average and Adasum), with no rows in allgather, and in
  // barriers. Other collectives fail on every rank. `last` is the rank that joined last, by its
  // number among all ranks; the highest of those that joined at the same time.
  Status Join(int* last);

  // An engine among `ranks` for those of them, null for the others; every rank calls it alike.
  // `process_set` is a positive number that no other set has had.
  Status AddProcessSet(const std::vector<int>& ranks, int process_set,
                       std::shared_ptr<Engine>* engine);

  // Every rank calls it; agrees that they drop the same set, and does nothing else.
  Status RemoveProcessSet(int process_set);

  // Every rank calls it alike, and what follows runs so. Results have the same bits, but for what
  // another order of sums makes of them where hosts or messages come in. Process sets that are
  // there stay as they are, and later ones begin so.
  Status Tune(const Tuning& tuning);

  // What Tune may ask for at most as chunk_bytes; 0 where the ranks share no memory.
  int64_t MostChunkBytes() const {
    return host_.window == nullptr ? 0 : host_.window->slot_bytes();
  }

  // The process of `rank`, by its number among all, has ended: whoever waits for it waits in vain.
  // From any thread, also during a call.
  void NoteEnded(int rank) { config_.monitor->NoteEnded(rank); }

  // Waits until what this rank has on the GPU has come to an end: before the engine of a process
  // set is let go.
  void Finish();

  // Why no further call can run; Ok while they can. Waits for the call that runs.
  Status End();

  // Before the ranks change: ends this engine, after the call that runs. Other ranks that wait for
  // this one fail. Waits for nobody.
  void Part();

  // After Part: an engine of these ranks with the same settings, which each of them makes.
  Status Meet(const Membership& membership, std::shared_ptr<Engine>* next);

  // Tells the peers that this rank is done and waits until all are. A peer that is still in
  // another collective gets kFailedPrecondition there, and so does this call. After success the
  // transport is closed and every later call fails.
  Status Shutdown();

 private:
  // Numbers for Communicator::Subset that each process set has: its own first.
  static constexpr int kChannels = 4;

  // What a call has when the ranks have agreed on it.
  struct Agreed {
    FusedCollective* fused;
    Agreement* agreement;
    Wait* wait;
  };
  using Body = std::function<Status(const Agreed& agreed)>;

  Status Run(
      Call* call, const OnGpu* gpu, const Body& body = [](const Agreed&) { return Status::Ok(); },
      int64_t place = -1);
  std::string TitleOf(const Call& call) const;
  Status Agree(const Call& call, Wait* wait, Agreement* agreement);
  Status Keep(const Status& status);
  Status TakePart(const Agreement& agreement);
  Status ContributeZeros(ReceivedCall* received, const Agreement& agreement, Wait* wait);
  Status ContributeZerosOnGpu(const std::vector<int64_t>& rows, const Agreement& agreement,
                              ReceivedCall* received, Wait* wait);

  // The time in which a call has the engine to itself.
  class Turn {
   public:
    Turn(Engine* engine, const OnGpu* gpu, int64_t place = -1);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Engine* const engine_;
    const OnGpu* const gpu_;
  };

  using OnDevice = std::function<Status(Device* device)>;
  std::string PrepareDevice(const OnGpu& gpu, Call* call);
  Status RunOnDevice(const Call& call, const OnGpu& gpu, Wait* wait, const OnDevice& collective);
  void Take(const Tuning& tuning) {
    tuning_ = tuning;
    if (host_.window != nullptr) host_.window->SetChunkBytes(tuning.chunk_bytes);
  }
  Status CheckRanksOfHost() const;
  void Remember(const Status& late);
  Status CheckUsable();

  const std::unique_ptr<Communicator> communicator_;
  const EngineConfig config_;
  const int process_set_;
  const std::string place_;  // " in process set 1 (ranks 0, 2)"; empty for all ranks
  std::atomic<int64_t> busy_ns_{0};
  Turnstile turnstile_;  // one call at a time; guards all below
  Status end_;           // not ok: why no further call can run
  Tuning tuning_;
  Host host_;
  CallTrace trace_;
  Activity last_;  // Stall::before, of the next call
  ClockProbe clock_probe_;
  HeaderCheck header_check_;
  MeteredCall metered_;
  Buffers buffers_;
  FusionBuffer zeros_;  // what a rank that has joined contributes
  std::mutex late_mutex_;
  Status late_;                     // how a call on the GPU ended after it had returned
  std::unique_ptr<Device> device_;  // from the first call on a GPU; before what it looks at is gone
  std::atomic<Device*> connected_{nullptr};  // the same, when it can mark; for Announce
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_ENGINE_H_
