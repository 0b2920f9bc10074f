#include "nccl/nccl_device.h"

#include <utility>

#include "cuda/kernel_cache.h"

namespace tfdist {
namespace {

// The opening of NCCL ends before the deadline of those that wait for its outcome.
constexpr double kPartOfDeadline = 0.5;

DeviceReduce ReduceOf(const Call& call, double share, const Topology& topology) {
  DeviceReduce reduce;
  reduce.reduction = call.reduction;
  reduce.compression = call.compression;
  reduce.prescale = call.prescale;
  reduce.postscale = call.postscale;
  reduce.share = share;
  reduce.fusion_threshold_bytes = call.fusion_threshold_bytes;
  reduce.by_hosts = call.hierarchy != Hierarchy::kNone && HostHierarchy::Exists(topology);
  return reduce;
}

CudaStream ToStream(void* stream) { return static_cast<CudaStream>(stream); }

Status MakeNcclDevice(const DeviceSpec& spec, std::unique_ptr<Device>* device) {
  *device = std::make_unique<NcclDevice>(spec, LoadGpuLibraries);
  return Status::Ok();
}

const bool kDeviceRegistered = RegisterDeviceFactory(MakeNcclDevice);

}  // namespace

NcclDevice::NcclDevice(const DeviceSpec& spec, LibraryLoader load)
    : spec_(spec), load_(std::move(load)), number_(spec.number) {
  static_cast<void>(kDeviceRegistered);
}

NcclDevice::~NcclDevice() {
  Abort();
  completions_.reset();
  // Where this fails, memory is the driver's when the process ends.
  if (libraries_.driver != nullptr) static_cast<void>(libraries_.driver->Use(number_));
}

// Once, until it has worked.
Status NcclDevice::Open() {
  if (collective_ != nullptr) return libraries_.driver->Use(number_);
  TFDIST_RETURN_IF_ERROR(load_(spec_.config, &libraries_));
  TFDIST_RETURN_IF_ERROR(ChooseGpu());
  TFDIST_RETURN_IF_ERROR(libraries_.driver->Use(number_));
  TFDIST_RETURN_IF_ERROR(libraries_.driver->Describe(number_, &facts_));
  KernelCache kernels(libraries_.compiler, spec_.config.kernel_cache);
  TFDIST_RETURN_IF_ERROR(
      DeviceCollective::Open(libraries_.driver, facts_, &kernels, spec_.topology, &collective_));
  return Status::Ok();
}

bool NcclDevice::ReducesByHosts() const {
  return spec_.config.hierarchy != Hierarchy::kNone && HostHierarchy::Exists(spec_.topology);
}

// The GPU that tfdist.init() gives to this local rank, of those that the process may see.
Status NcclDevice::ChooseGpu() {
  int count = 0;
  TFDIST_RETURN_IF_ERROR(libraries_.driver->CountDevices(&count));
  if (count == 0) {
    return Status(StatusCode::kUnimplemented,
                  "no GPU is visible to this process. Check CUDA_VISIBLE_DEVICES and nvidia-smi.");
  }
  if (number_ < 0) number_ = spec_.topology.local_rank % count;
  return Status::Ok();
}

Status NcclDevice::Prepare(const Call& call) {
  TFDIST_RETURN_IF_ERROR(Open());
  const DeviceReduce reduce = ReduceOf(call, call.weighted ? 1 : -1, spec_.topology);
  if (call.operation == Operation::kAllreduce) {
    return collective_->PrepareAllreduce(reduce, *call.tensors);
  }
  if (call.operation == Operation::kReduceScatter) {
    return collective_->PrepareReduceScatter(reduce, *call.tensors);
  }
  return Status::Ok();
}

Status NcclDevice::Join(const Status& prepared, Communicator* transport, Wait* wait) {
  if (!prepared.ok()) return NcclRanks::Agree(prepared, transport, wait);
  HostHierarchy::Setup setup;
  setup.nccl = libraries_.nccl;
  setup.driver = libraries_.driver;
  setup.gpu = "GPU " + std::to_string(number_) + ": " + facts_.name;
  setup.joining = spec_.config;
  setup.joining.stall_warning_seconds = 0;
  setup.joining.stall_shutdown_seconds *= kPartOfDeadline;
  setup.check = spec_.check_ranks;
  setup.channel = spec_.channel;
  setup.between = spec_.config.hierarchy;
  std::unique_ptr<NcclRanks> ranks;
  TFDIST_RETURN_IF_ERROR(
      NcclRanks::Open(setup.nccl, setup.gpu, setup.joining, transport, wait, &ranks));
  if (ReducesByHosts()) {
    TFDIST_RETURN_IF_ERROR(HostHierarchy::Open(setup, transport, wait, &hierarchy_));
  }
  ranks_ = std::move(ranks);
  collective_->Connect(transport, ranks_.get(), hierarchy_.get());
  CompletionThread::Watch watch;
  watch.check = [this] { return CheckRanks(); };
  watch.verdict = [this] { return Verdict(); };
  watch.give_up = [this](const Status& why) { AbortRanks(why); };
  completions_ = std::make_unique<CompletionThread>(libraries_.driver, number_, spec_.config,
                                                    spec_.topology, std::move(watch));
  return Status::Ok();
}

// For the thread that watches.
Status NcclDevice::CheckRanks() {
  TFDIST_RETURN_IF_ERROR(spec_.check_ranks());
  const Wait wait(spec_.config, spec_.topology,
                  [] { return std::string("collectives on the GPU"); });
  TFDIST_RETURN_IF_ERROR(ranks_->Check(wait));
  return hierarchy_ == nullptr ? Status::Ok() : hierarchy_->Check(wait);
}

Status NcclDevice::Verdict() {
  TFDIST_RETURN_IF_ERROR(ranks_->end());
  return hierarchy_ == nullptr ? Status::Ok() : hierarchy_->end();
}

void NcclDevice::AbortRanks(const Status& why) {
  ranks_->Abort(why);
  if (hierarchy_ != nullptr) hierarchy_->Abort(why);
}

DeviceCollective::Step NcclDevice::StepOf(const Made& made, Wait* wait) {
  Profiler* const profiler = libraries_.profiler;
  if (profiler != nullptr) shown_ = profiler->Start(wait->Describe());
  return {{ToStream(made.stream), static_cast<CudaEvent>(made.mark)}, wait, &done_, profiler};
}

Status NcclDevice::Allreduce(const Call& call, double share, const std::vector<TensorView>& outputs,
                             const Made& made, Wait* wait) {
  return collective_->Allreduce(ReduceOf(call, share, spec_.topology), *call.tensors, outputs,
                                StepOf(made, wait));
}

Status NcclDevice::ReduceScatter(const Call& call, const std::vector<TensorView>& outputs,
                                 const Made& made, Wait* wait) {
  return collective_->ReduceScatter(ReduceOf(call, -1, spec_.topology), *call.tensors, outputs,
                                    StepOf(made, wait));
}

Status NcclDevice::Broadcast(const Call& call, int root, const std::vector<TensorView>& outputs,
                             const Made& made, Wait* wait) {
  return collective_->Broadcast(root, *call.tensors, outputs, StepOf(made, wait));
}

Status NcclDevice::Allgather(const Call& call, const std::vector<int64_t>& rows,
                             const std::vector<TensorView>& outputs, const Made& made, Wait* wait) {
  return collective_->Allgather(*call.tensors, rows, outputs, StepOf(made, wait));
}

Status NcclDevice::Alltoall(const Call& call, const std::vector<int64_t>& sent,
                            const std::vector<int64_t>& received, const TensorView& output,
                            const Made& made, Wait* wait) {
  return collective_->Alltoall((*call.tensors)[0], sent, received, output, StepOf(made, wait));
}

Status NcclDevice::Mark(void* stream, void** mark) {
  TFDIST_RETURN_IF_ERROR(libraries_.driver->Use(number_));
  CudaEvent event = nullptr;
  TFDIST_RETURN_IF_ERROR(collective_->Mark(ToStream(stream), &event));
  *mark = event;
  return Status::Ok();
}

void NcclDevice::Forget(void* mark) { collective_->Release(static_cast<CudaEvent>(mark)); }

Status NcclDevice::Precede(void* stream) {
  if (done_ == nullptr) return Status::Ok();
  TFDIST_RETURN_IF_ERROR(libraries_.driver->Use(number_));
  return libraries_.driver->WaitFor(ToStream(stream), done_);
}

void NcclDevice::WhenDone(const std::string& title, const Done& done) {
  const CudaEvent event = done_;
  completions_->Add(event, title,
                    [this, event, shown = std::exchange(shown_, 0), done](const Status& status) {
                      if (status.ok()) collective_->Release(event);
                      HideRange(shown);
                      done(status);
                    });
}

void NcclDevice::HideRange(uint64_t range) {
  if (range != 0) libraries_.profiler->End(range);
}

void NcclDevice::Finish() {
  if (completions_ != nullptr) completions_->Finish();
}

Status NcclDevice::Close(Wait* wait) {
  if (ranks_ == nullptr) return Status::Ok();
  TFDIST_RETURN_IF_ERROR(libraries_.driver->Use(number_));
  Finish();
  if (hierarchy_ != nullptr) TFDIST_RETURN_IF_ERROR(hierarchy_->Close(wait));
  return ranks_->Close(wait);
}

void NcclDevice::Abort() {
  HideRange(shown_);
  shown_ = 0;
  if (ranks_ != nullptr) {
    AbortRanks(Status(StatusCode::kUnavailable,
                      "the NCCL communicator was aborted because the ranks separated."));
    if (hierarchy_ != nullptr) hierarchy_->Part();
  }
}

}  // namespace tfdist
