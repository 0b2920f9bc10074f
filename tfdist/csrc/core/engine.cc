#include "core/engine.h"

#include <algorithm>
#include <utility>

#include "core/argument.h"
#include "core/collective.h"
#include "core/stopwatch.h"
#include "core/wait.h"

namespace tfdist {
namespace {

// Smaller tensors are broadcast together; larger ones gain nothing that pays for the copy.
constexpr int64_t kFusedBroadcastBytes = 1 << 20;

// The least power of two that is not less than `size`.
double PowerOfTwoFor(int size) {
  double power = 1;
  while (power < size) power *= 2;
  return power;
}

std::vector<DType> DTypesOf(const std::vector<TensorView>& tensors) {
  std::vector<DType> dtypes;
  for (const TensorView& tensor : tensors) dtypes.push_back(tensor.dtype);
  return dtypes;
}

std::vector<int64_t> WireBytesOf(const std::vector<TensorView>& tensors, Compression compression) {
  std::vector<int64_t> bytes;
  for (const TensorView& tensor : tensors) {
    bytes.push_back(tensor.count() * SizeOf(WireType(tensor.dtype, compression)));
  }
  return bytes;
}

}  // namespace

Engine::Engine(std::unique_ptr<Communicator> communicator, const EngineConfig& config)
    : communicator_(std::move(communicator)), config_(config) {}

// Keeps an error after which the communicator cannot be used.
Status Engine::Keep(const Status& status) {
  const StatusCode code = status.code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
      code == StatusCode::kInternal) {
    end_ = status;
  }
  return status;
}

Status Engine::Agree(const Call& call, Wait* wait) {
  return Keep(header_check_.Agree(call, communicator_.get(), wait));
}

// Before the ranks agree, so that a lack of memory on one rank becomes everybody's error instead
// of a wait.
Status Engine::ReserveBuffers(const std::vector<Bucket>& plan, const std::vector<int64_t>& bytes) {
  int64_t largest = 0;
  for (const Bucket& bucket : plan) {
    int64_t bucket_bytes = 0;
    for (int index : bucket) bucket_bytes += bytes[index];
    largest = std::max(largest, bucket_bytes);
  }
  TFDIST_RETURN_IF_ERROR(fusion_.Reserve(largest));
  if (communicator_->size() == 1) return Status::Ok();
  return scratch_.Reserve(Collective::ScratchBytes(communicator_->size()));
}

Status Engine::Allreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kAllreduce;
  call.name = options.name;
  call.reduction = options.reduction;
  call.compression = options.compression;
  call.prescale = options.prescale;
  call.postscale = options.postscale;
  call.fusion_threshold_bytes = config_.fusion_threshold_bytes;
  call.tensor_names = &options.tensor_names;
  call.tensors = &inputs;
  call.error = CheckAllreduce(options, inputs, outputs);
  std::vector<Bucket> plan;
  if (call.error.empty()) {
    // Planned by the tensors' own types: one bucket has one wire type and is scaled in one way.
    const std::vector<int64_t> bytes = WireBytesOf(inputs, options.compression);
    plan = PlanBuckets(DTypesOf(inputs), bytes, config_.fusion_threshold_bytes);
    call.error = ReserveBuffers(plan, bytes).message();
  }
  Wait wait(config_, communicator_->topology(), [&call] { return Title(call); });
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait));
  for (const Bucket& bucket : plan) {
    TFDIST_RETURN_IF_ERROR(Keep(ReduceBucket(options, bucket, inputs, outputs, &wait)));
  }
  return Status::Ok();
}

// A compressed sum leaves the accumulator divided by a power of two, which costs no bits, and is
// multiplied again in the tensor's own type: so it cannot overflow a 16-bit wire when its average
// does not. Growing and shrinking by `postscale` happens where the range is wider.
Engine::BucketScale Engine::ScaleOf(const AllreduceOptions& options, bool compressed) const {
  BucketScale scale;
  const int size = communicator_->size();
  if (options.reduction == Reduction::kAverage) scale.before_rounding.divisor = size;
  if (!compressed) {
    scale.before_rounding.multiplier = options.postscale;
    return scale;
  }
  scale.unpack = options.postscale;
  if (options.reduction == Reduction::kSum) {
    scale.before_rounding.divisor = PowerOfTwoFor(size);
    scale.unpack *= PowerOfTwoFor(size);
  }
  return scale;
}

Status Engine::ReduceBucket(const AllreduceOptions& options, const Bucket& bucket,
                            const std::vector<TensorView>& inputs,
                            const std::vector<TensorView>& outputs, Wait* wait) {
  const DType dtype = inputs[bucket[0]].dtype;
  const DType wire = WireType(dtype, options.compression);
  const BucketScale scale = ScaleOf(options, wire != dtype);
  const ReduceSpec spec{wire, options.reduction, scale.before_rounding};
  Collective collective(communicator_.get(), wait, &scratch_);
  if (bucket.size() == 1 && wire == dtype && options.prescale == 1) {
    const TensorView& input = inputs[bucket[0]];
    return collective.Allreduce(spec, input.data, input.count(), outputs[bucket[0]].data);
  }
  char* end = fusion_.data();
  for (int index : bucket) end = Pack(inputs[index], wire, options.prescale, end);
  const int64_t count = (end - fusion_.data()) / SizeOf(wire);
  TFDIST_RETURN_IF_ERROR(collective.Allreduce(spec, fusion_.data(), count, fusion_.data()));
  const char* next = fusion_.data();
  for (int index : bucket) next = Unpack(next, wire, scale.unpack, outputs[index]);
  return Status::Ok();
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
  call.error = CheckBroadcast(options, tensors, communicator_->size());
  std::vector<Bucket> plan;
  if (call.error.empty()) {
    const std::vector<int64_t> bytes = WireBytesOf(tensors, Compression::kNone);
    plan = PlanBuckets(DTypesOf(tensors), bytes,
                       std::min(kFusedBroadcastBytes, config_.fusion_threshold_bytes));
    call.error = fusion_.Reserve(kFusedBroadcastBytes).message();
  }
  Wait wait(config_, communicator_->topology(), [&call] { return Title(call); });
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait));
  for (const Bucket& bucket : plan) {
    TFDIST_RETURN_IF_ERROR(Keep(BroadcastBucket(options.root, bucket, tensors, &wait)));
  }
  return Status::Ok();
}

Status Engine::BroadcastBucket(int root, const Bucket& bucket,
                               const std::vector<TensorView>& tensors, Wait* wait) {
  Collective collective(communicator_.get(), wait, &scratch_);
  if (bucket.size() == 1) {
    const TensorView& tensor = tensors[bucket[0]];
    return collective.Broadcast(root, tensor.data, tensor.bytes());
  }
  const DType dtype = tensors[bucket[0]].dtype;
  char* end = fusion_.data();
  for (int index : bucket) end = Pack(tensors[index], dtype, 1.0, end);
  TFDIST_RETURN_IF_ERROR(collective.Broadcast(root, fusion_.data(), end - fusion_.data()));
  if (communicator_->rank() == root) return Status::Ok();
  const char* next = fusion_.data();
  for (int index : bucket) next = Unpack(next, dtype, 1.0, tensors[index]);
  return Status::Ok();
}

Status Engine::Allgather(const std::string& name, const TensorView& input,
                         const Allocate& allocate) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  const std::vector<std::string> tensor_names = {name};
  std::vector<TensorView> tensors = {input};
  if (tensors[0].shape.empty()) tensors[0].shape = {1};
  Call call;
  call.operation = Operation::kAllgather;
  call.name = name;
  call.tensor_names = &tensor_names;
  call.tensors = &tensors;
  call.error = CheckAllgather(name, tensors[0]);
  Wait wait(config_, communicator_->topology(), [&call] { return Title(call); });
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait));
  return GatherRows(tensors[0], allocate, &wait);
}

Status Engine::GatherRows(const TensorView& input, const Allocate& allocate, Wait* wait) {
  Collective collective(communicator_.get(), wait, &scratch_);
  const std::vector<int64_t> row_count_bytes(communicator_->size(), sizeof(int64_t));
  rows_.resize(communicator_->size());
  own_rows_ = input.shape[0];
  TFDIST_RETURN_IF_ERROR(Keep(collective.Allgather(&own_rows_, row_count_bytes, rows_.data())));

  TensorView row = input;
  row.shape[0] = 1;
  std::vector<int64_t> shape = input.shape;
  shape[0] = 0;
  std::vector<int64_t> bytes;
  for (int64_t rows : rows_) {
    shape[0] += rows;
    bytes.push_back(rows * row.bytes());
  }
  TensorView output;
  const Status allocated = allocate(shape, &output);
  if (!allocated.ok()) {
    // The peers have memory and are on their way: take part, and throw the result away.
    TFDIST_RETURN_IF_ERROR(Keep(fusion_.Reserve(shape[0] * row.bytes())));
    output.data = fusion_.data();
  }
  TFDIST_RETURN_IF_ERROR(Keep(collective.Allgather(input.data, bytes, output.data)));
  return allocated;
}

Status Engine::Barrier(const std::string& name) {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kBarrier;
  call.name = name;
  Wait wait(config_, communicator_->topology(), [&call] { return Title(call); });
  return Agree(call, &wait);  // to have every rank's header is to know that all have arrived
}

Status Engine::Shutdown() {
  const Stopwatch stopwatch(&busy_ns_);
  std::lock_guard<std::mutex> lock(mutex_);
  TFDIST_RETURN_IF_ERROR(end_);
  Call call;
  call.operation = Operation::kShutdown;
  Wait wait(config_, communicator_->topology(), [&call] { return Title(call); });
  TFDIST_RETURN_IF_ERROR(Agree(call, &wait));
  end_ = Status(StatusCode::kFailedPrecondition,
                "tfdist has been shut down on this rank. Call init() before further collectives.");
  return communicator_->Finalize(/*clean=*/true);
}

}  // namespace tfdist
