#include "core/fused_collective.h"

#include <algorithm>
#include <utility>

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

// Elements of one row.
int64_t RowCount(const TensorView& tensor) {
  int64_t count = 1;
  for (size_t d = 1; d < tensor.shape.size(); ++d) count *= tensor.shape[d];
  return count;
}

int64_t RowBytes(const TensorView& tensor) { return RowCount(tensor) * SizeOf(tensor.dtype); }

}  // namespace

RowRange OwnRows(int64_t rows, int rank, int size) {
  const int64_t share = rows / size;
  const int64_t more = rows % size;  // ranks that have one more
  const int64_t begin = share * rank + std::min<int64_t>(rank, more);
  return {begin, begin + share + (rank < more ? 1 : 0)};
}

// How the buckets of one dtype are scaled around their reduction.
struct FusedCollective::Scales {
  DType wire = DType::kFloat32;
  double pack = 1;        // on the way in
  bool counts = true;     // not: a rank without weight, whose numbers may be NaN, gives zeros
  Scale before_rounding;  // in the accumulator
  double unpack = 1;      // on the way out of a compressed bucket

  char* PackTensor(const TensorView& tensor, char* target) const {
    if (counts) return Pack(tensor, wire, pack, target);
    const int64_t bytes = tensor.count() * SizeOf(wire);
    std::fill_n(target, bytes, '\0');
    return target + bytes;
  }
};

FusedCollective::FusedCollective(const Call& call, Communicator* communicator, Wait* wait,
                                 Buffers* buffers)
    : call_(call),
      communicator_(communicator),
      buffers_(buffers),
      collective_(communicator, wait, &buffers->scratch) {}

Status FusedCollective::Prepare() {
  const bool broadcast = call_.operation == Operation::kBroadcast;
  std::vector<DType> dtypes;
  std::vector<int64_t> bytes;
  for (const TensorView& tensor : *call_.tensors) {
    const Compression compression = broadcast ? Compression::kNone : call_.compression;
    dtypes.push_back(tensor.dtype);
    bytes.push_back(tensor.count() * SizeOf(WireType(tensor.dtype, compression)));
  }
  // Planned by the tensors' own types: one bucket has one wire type and is scaled in one way.
  const int64_t threshold = call_.fusion_threshold_bytes;
  plan_ =
      PlanBuckets(dtypes, bytes, broadcast ? std::min(kFusedBroadcastBytes, threshold) : threshold);
  if (broadcast) return buffers_->fusion.Reserve(kFusedBroadcastBytes);
  const int size = communicator_->size();
  int64_t most_bytes = 0;
  int64_t adasum_bytes = 0;
  for (const Bucket& bucket : plan_) {
    int64_t bucket_bytes = 0;
    int64_t elements = 0;
    for (int index : bucket) {
      bucket_bytes += bytes[index];
      elements += (*call_.tensors)[index].count();
    }
    most_bytes = std::max(most_bytes, bucket_bytes);
    const DType wire = WireType(dtypes[bucket[0]], call_.compression);
    const int64_t tensors = static_cast<int64_t>(bucket.size());
    adasum_bytes = std::max(adasum_bytes, Collective::AdasumBytes(wire, elements, tensors, size));
  }
  TFDIST_RETURN_IF_ERROR(buffers_->fusion.Reserve(most_bytes));
  if (size == 1) return Status::Ok();
  if (call_.reduction == Reduction::kAdasum) {
    TFDIST_RETURN_IF_ERROR(buffers_->parts.Reserve(adasum_bytes));
  }
  return buffers_->scratch.Reserve(Collective::ScratchBytes(size));
}

// The part of a weighted average that is this rank's; negative where all count alike.
double FusedCollective::ShareOf(const Agreement& agreement) const {
  if (!call_.weighted || call_.reduction != Reduction::kAverage) return -1;
  double total = 0;
  bool alike = true;
  for (size_t r = 0; r < agreement.weights.size(); ++r) {
    const double weight = agreement.joined[r] == 1 ? 0 : agreement.weights[r];
    total += weight;
    alike = alike && agreement.joined[r] == 0 && agreement.weights[r] == agreement.weights[0];
  }
  if (total == 0) return 0;
  if (alike) return -1;
  const int rank = communicator_->rank();
  return agreement.joined[rank] == 1 ? 0 : agreement.weights[rank] / total;
}

// A compressed sum leaves the accumulator divided by a power of two, which costs no bits, and is
// multiplied again in the tensor's own type: so it cannot overflow a 16-bit wire when its average
// does not. Growing and shrinking by `postscale` happens where the range is wider.
FusedCollective::Scales FusedCollective::ScalesFor(const Agreement& agreement, DType dtype) const {
  Scales scales;
  scales.wire = WireType(dtype, call_.compression);
  scales.pack = call_.prescale;
  const int size = communicator_->size();
  const double share = ShareOf(agreement);
  if (share >= 0) {
    scales.pack *= share;
    scales.counts = share > 0;
  } else if (call_.reduction == Reduction::kAverage) {
    scales.before_rounding.divisor = size;
  }
  if (call_.reduction == Reduction::kAdasum) {
    scales.unpack = call_.postscale;
  } else if (scales.wire == dtype) {
    scales.before_rounding.multiplier = call_.postscale;
  } else {
    scales.unpack = call_.postscale;
    if (call_.reduction == Reduction::kSum) {
      scales.before_rounding.divisor = PowerOfTwoFor(size);
      scales.unpack *= PowerOfTwoFor(size);
    }
  }
  return scales;
}

Status FusedCollective::Allreduce(const Agreement& agreement,
                                  const std::vector<TensorView>& outputs) {
  for (const Bucket& bucket : plan_) {
    const Scales scales = ScalesFor(agreement, (*call_.tensors)[bucket[0]].dtype);
    TFDIST_RETURN_IF_ERROR(AllreduceBucket(scales, bucket, outputs));
  }
  return Status::Ok();
}

Status FusedCollective::AllreduceBucket(const Scales& scales, const Bucket& bucket,
                                        const std::vector<TensorView>& outputs) {
  const std::vector<TensorView>& inputs = *call_.tensors;
  const ReduceSpec spec{scales.wire, call_.reduction, scales.before_rounding};
  const bool adasum = call_.reduction == Reduction::kAdasum;
  const TensorView& first = inputs[bucket[0]];
  if (bucket.size() == 1 && scales.wire == first.dtype && scales.pack == 1 && !adasum) {
    return collective_.Allreduce(spec, first.data, first.count(), outputs[bucket[0]].data);
  }
  char* const begin = buffers_->fusion.data();
  char* end = begin;
  std::vector<int64_t> counts;
  for (int index : bucket) {
    end = scales.PackTensor(inputs[index], end);
    counts.push_back(inputs[index].count());
  }
  const int64_t count = (end - begin) / SizeOf(scales.wire);
  TFDIST_RETURN_IF_ERROR(adasum ? collective_.Adasum(scales.wire, counts, begin, &buffers_->parts)
                                : collective_.Allreduce(spec, begin, count, begin));
  const char* next = begin;
  for (int index : bucket) next = Unpack(next, scales.wire, scales.unpack, outputs[index]);
  return Status::Ok();
}

Status FusedCollective::ReduceScatter(const Agreement& agreement,
                                      const std::vector<TensorView>& outputs) {
  for (const Bucket& bucket : plan_) {
    const Scales scales = ScalesFor(agreement, (*call_.tensors)[bucket[0]].dtype);
    TFDIST_RETURN_IF_ERROR(ReduceScatterBucket(scales, bucket, outputs));
  }
  return Status::Ok();
}

// Packed rank by rank, so that what one rank keeps of all tensors lies side by side.
Status FusedCollective::ReduceScatterBucket(const Scales& scales, const Bucket& bucket,
                                            const std::vector<TensorView>& outputs) {
  const std::vector<TensorView>& inputs = *call_.tensors;
  const int size = communicator_->size();
  const ReduceSpec spec{scales.wire, call_.reduction, scales.before_rounding};
  char* const begin = buffers_->fusion.data();
  char* end = begin;
  std::vector<int64_t> offsets;
  for (int rank = 0; rank < size; ++rank) {
    offsets.push_back((end - begin) / SizeOf(scales.wire));
    for (int index : bucket) {
      TensorView rows = inputs[index];
      const RowRange range = OwnRows(rows.shape[0], rank, size);
      rows.data = static_cast<char*>(rows.data) + range.begin * RowBytes(rows);
      rows.shape[0] = range.end - range.begin;
      end = scales.PackTensor(rows, end);
    }
  }
  offsets.push_back((end - begin) / SizeOf(scales.wire));
  char* const own = begin + offsets[communicator_->rank()] * SizeOf(scales.wire);
  TFDIST_RETURN_IF_ERROR(collective_.ReduceScatter(spec, begin, offsets, own));
  const char* next = own;
  for (int index : bucket) next = Unpack(next, scales.wire, scales.unpack, outputs[index]);
  return Status::Ok();
}

Status FusedCollective::Broadcast() {
  const std::vector<int>& ranks = communicator_->topology().world_ranks;
  const auto root = std::find(ranks.begin(), ranks.end(), call_.root) - ranks.begin();
  for (const Bucket& bucket : plan_) {
    TFDIST_RETURN_IF_ERROR(BroadcastBucket(static_cast<int>(root), bucket));
  }
  return Status::Ok();
}

Status FusedCollective::BroadcastBucket(int root, const Bucket& bucket) {
  const std::vector<TensorView>& tensors = *call_.tensors;
  if (bucket.size() == 1) {
    const TensorView& tensor = tensors[bucket[0]];
    return collective_.Broadcast(root, tensor.data, tensor.bytes());
  }
  const DType dtype = tensors[bucket[0]].dtype;
  char* const begin = buffers_->fusion.data();
  char* end = begin;
  for (int index : bucket) end = Pack(tensors[index], dtype, 1.0, end);
  TFDIST_RETURN_IF_ERROR(collective_.Broadcast(root, begin, end - begin));
  if (communicator_->rank() == root) return Status::Ok();
  const char* next = begin;
  for (int index : bucket) next = Unpack(next, dtype, 1.0, tensors[index]);
  return Status::Ok();
}

// Everybody's `own` numbers, rank by rank, in buffers_->rows.
Status FusedCollective::ExchangeRows(const std::vector<int64_t>& own) {
  const int size = communicator_->size();
  buffers_->own_rows = own;
  buffers_->rows.resize(own.size() * static_cast<size_t>(size));
  const int64_t bytes = static_cast<int64_t>(own.size() * sizeof(int64_t));
  return collective_.Allgather(buffers_->own_rows.data(),
                               std::vector<int64_t>(static_cast<size_t>(size), bytes),
                               buffers_->rows.data());
}

Status FusedCollective::Allgather(const Allocate& allocate, std::vector<int64_t>* rows) {
  const std::vector<TensorView>& inputs = *call_.tensors;
  const int size = communicator_->size();
  std::vector<int64_t> own;
  for (const TensorView& input : inputs) own.push_back(input.shape[0]);
  TFDIST_RETURN_IF_ERROR(ExchangeRows(own));
  rows->resize(inputs.size() * size);
  Status allocated;
  for (size_t t = 0; t < inputs.size(); ++t) {
    std::vector<int64_t> shape = inputs[t].shape;
    std::vector<int64_t> bytes;
    shape[0] = 0;
    for (int r = 0; r < size; ++r) {
      const int64_t count = buffers_->rows[r * inputs.size() + t];
      (*rows)[t * size + r] = count;
      shape[0] += count;
      bytes.push_back(count * RowBytes(inputs[t]));
    }
    TensorView output;
    const Status status = allocate(static_cast<int>(t), shape, &output);
    if (!status.ok()) {
      // The peers have memory and are on their way: take part, and throw the result away.
      TFDIST_RETURN_IF_ERROR(buffers_->fusion.Reserve(shape[0] * RowBytes(inputs[t])));
      output.data = buffers_->fusion.data();
      allocated = status;
    }
    TFDIST_RETURN_IF_ERROR(collective_.Allgather(inputs[t].data, bytes, output.data));
  }
  return allocated;
}

Status FusedCollective::Alltoall(const std::vector<int64_t>& splits, const Allocate& allocate,
                                 std::vector<int64_t>* received) {
  const TensorView& input = (*call_.tensors)[0];
  const int size = communicator_->size();
  TFDIST_RETURN_IF_ERROR(ExchangeRows(splits));
  std::vector<int64_t> shape = input.shape;
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> receive_bytes;
  shape[0] = 0;
  received->clear();
  for (int r = 0; r < size; ++r) {
    const int64_t count = buffers_->rows[r * size + communicator_->rank()];
    received->push_back(count);
    shape[0] += count;
    send_bytes.push_back(splits[r] * RowBytes(input));
    receive_bytes.push_back(count * RowBytes(input));
  }
  TensorView output;
  const Status allocated = allocate(0, shape, &output);
  if (!allocated.ok()) {
    TFDIST_RETURN_IF_ERROR(buffers_->fusion.Reserve(shape[0] * RowBytes(input)));
    output.data = buffers_->fusion.data();
  }
  TFDIST_RETURN_IF_ERROR(collective_.Alltoall(input.data, send_bytes, output.data, receive_bytes));
  return allocated;
}

}  // namespace tfdist
