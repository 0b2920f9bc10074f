#include "core/algorithm/fused_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/algorithm/phase_scope.h"

namespace tfdist {
namespace {

// Smaller tensors are broadcast together; larger ones gain nothing that pays for the copy.
constexpr int64_t kFusedBroadcastBytes = 1 << 20;

// Results of this size and more are not expected to be in a cache when they are used.
constexpr int64_t kStreamedBytes = 32 << 20;

// Elements that travel as they are.
FusedView ViewOf(DType dtype, int64_t count, void* data) {
  Conversion as_it_is;
  as_it_is.wire = dtype;
  FusedView view(as_it_is);
  view.Add({dtype, {count}, data});
  return view;
}

FusedView ViewOf(const Conversion& conversion, const std::vector<TensorView>& tensors,
                 const Bucket& bucket) {
  FusedView view(conversion);
  for (int index : bucket) view.Add(tensors[index]);
  return view;
}

}  // namespace

RowRange OwnRows(int64_t rows, int rank, int size) {
  const int64_t share = rows / size;
  const int64_t more = rows % size;  // ranks that have one more
  const int64_t begin = share * rank + std::min<int64_t>(rank, more);
  return {begin, begin + share + (rank < more ? 1 : 0)};
}

// How the buckets of one dtype are scaled around their reduction.
struct FusedCollective::Arithmetic {
  Conversion conversion;  // a rank without weight, whose numbers may be NaN, gives zeros
  Scale before_rounding;  // in the accumulator
};

FusedCollective::FusedCollective(const Call& call, Communicator* communicator, const Host& host,
                                 Wait* wait, Buffers* buffers)
    : call_(call),
      communicator_(communicator),
      host_(host),
      wait_(wait),
      buffers_(buffers),
      collective_(communicator, wait, &buffers->scratch),
      window_(host.topology, host.window.get(), wait) {}

Status FusedCollective::Prepare() {
  if (!TravelsInBuckets(call_.operation)) return Status::Ok();
  const bool broadcast = call_.operation == Operation::kBroadcast;
  std::vector<DType> dtypes;
  std::vector<int64_t> bytes;
  int64_t result_bytes = 0;
  for (const TensorView& tensor : *call_.tensors) {
    result_bytes += tensor.bytes();
    const Compression compression = broadcast ? Compression::kNone : call_.compression;
    dtypes.push_back(tensor.dtype);
    bytes.push_back(tensor.count() * SizeOf(WireType(tensor.dtype, compression)));
  }
  if (result_bytes >= kStreamedBytes) stores_ = Stores::kStreamed;
  // Planned by the tensors' own types: one bucket has one wire type and is scaled in one way.
  const int64_t threshold = call_.fusion_threshold_bytes;
  plan_ = buffers_->plans.Find(dtypes, bytes,
                               broadcast ? std::min(kFusedBroadcastBytes, threshold) : threshold);
  const bool adasum = call_.reduction == Reduction::kAdasum;
  if (OnOneHost() && !adasum) return Status::Ok();  // the window is all that it takes
  if (broadcast) return buffers_->fusion.Reserve(kFusedBroadcastBytes);
  const int size = communicator_->size();
  int64_t most_bytes = 0;
  int64_t adasum_bytes = 0;
  for (const Bucket& bucket : *plan_) {
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
  if (adasum) TFDIST_RETURN_IF_ERROR(buffers_->parts.Reserve(adasum_bytes));
  return buffers_->scratch.Reserve(Collective::ScratchBytes(size));
}

double FusedCollective::ShareOf(const Call& call, const Agreement& agreement, int rank) {
  if (!call.weighted || call.reduction != Reduction::kAverage) return -1;
  double total = 0;
  bool alike = true;
  for (size_t r = 0; r < agreement.weights.size(); ++r) {
    const double weight = agreement.joined[r] == 1 ? 0 : agreement.weights[r];
    total += weight;
    alike = alike && agreement.joined[r] == 0 && agreement.weights[r] == agreement.weights[0];
  }
  if (total == 0) return 0;
  if (alike) return -1;
  return agreement.joined[rank] == 1 ? 0 : agreement.weights[rank] / total;
}

BucketScope FusedCollective::Recorded(const Bucket& bucket) const {
  return BucketScope(wait_->trace(), call_, bucket, static_cast<int>(&bucket - plan_->data()));
}

void FusedCollective::Pack(const FusedView& input, char* target) const {
  const PhaseScope scope(wait_, Phase::kPack);
  input.Copy(0, input.count(), target);
}

void FusedCollective::Unpack(const FusedView& output, const char* source) const {
  const PhaseScope scope(wait_, Phase::kUnpack);
  output.Write(0, output.count(), source);
}

// A compressed sum leaves the accumulator divided by a power of two, which costs no bits, and is
// multiplied again in the tensor's own type: so it cannot overflow a 16-bit wire when its average
// does not. Growing and shrinking by `postscale` happens where the range is wider.
FusedCollective::Arithmetic FusedCollective::ArithmeticFor(const Agreement& agreement,
                                                           DType dtype) const {
  Arithmetic arithmetic;
  Conversion& conversion = arithmetic.conversion;
  Scale& before_rounding = arithmetic.before_rounding;
  conversion.wire = WireType(dtype, call_.compression);
  conversion.pack = call_.prescale;
  conversion.stores = stores_;
  const int size = communicator_->size();
  const double share = ShareOf(call_, agreement, communicator_->rank());
  if (share >= 0) {
    conversion.pack *= share;
    conversion.counts = share > 0;
  } else if (call_.reduction == Reduction::kAverage) {
    before_rounding.divisor = size;
  }
  if (call_.reduction == Reduction::kAdasum) {
    conversion.unpack = call_.postscale;
  } else if (conversion.wire == dtype) {
    before_rounding.multiplier = call_.postscale;
  } else {
    conversion.unpack = call_.postscale;
    if (call_.reduction == Reduction::kSum) {
      before_rounding.divisor = PowerOfTwoFor(size);
      conversion.unpack *= PowerOfTwoFor(size);
    }
  }
  return arithmetic;
}

Status FusedCollective::Allreduce(const Agreement& agreement,
                                  const std::vector<TensorView>& outputs) {
  for (const Bucket& bucket : *plan_) {
    const DType dtype = (*call_.tensors)[bucket[0]].dtype;
    TFDIST_RETURN_IF_ERROR(AllreduceBucket(ArithmeticFor(agreement, dtype), bucket, outputs));
  }
  return Status::Ok();
}

Status FusedCollective::AllreduceBucket(const Arithmetic& arithmetic, const Bucket& bucket,
                                        const std::vector<TensorView>& outputs) {
  const BucketScope recorded = Recorded(bucket);
  const ReduceSpec spec{arithmetic.conversion.wire, call_.reduction, arithmetic.before_rounding};
  const FusedView input = ViewOf(arithmetic.conversion, *call_.tensors, bucket);
  const FusedView output = ViewOf(arithmetic.conversion, outputs, bucket);
  if (host_.window == nullptr || call_.reduction == Reduction::kAdasum) {
    return AllreduceMessages(spec, bucket, input, output);
  }
  if (OnOneHost()) return window_.Allreduce(spec, input, output);
  return AllreduceHosts(spec, input, output);
}

Status FusedCollective::AllreduceMessages(const ReduceSpec& spec, const Bucket& bucket,
                                          const FusedView& input, const FusedView& output) {
  const int64_t count = input.count();
  if (input.Memory() != nullptr && call_.reduction != Reduction::kAdasum) {
    return collective_.Allreduce(spec, input.Memory(), count, output.Memory());
  }
  char* const buffer = buffers_->fusion.data();
  Pack(input, buffer);
  if (call_.reduction == Reduction::kAdasum) {
    std::vector<int64_t> counts;
    for (int index : bucket) counts.push_back((*call_.tensors)[index].count());
    TFDIST_RETURN_IF_ERROR(collective_.Adasum(spec.dtype, counts, buffer, &buffers_->parts));
  } else {
    TFDIST_RETURN_IF_ERROR(collective_.Allreduce(spec, buffer, count, buffer));
  }
  Unpack(output, buffer);
  return Status::Ok();
}

// The two steps of a reduction: within a host, then between hosts. A 16-bit sum leaves the host
// divided by a power of two, so that it overflows no sooner than it would in one step.
FusedCollective::Steps FusedCollective::StepsOf(const ReduceSpec& spec) const {
  const bool sums = spec.reduction == Reduction::kSum || spec.reduction == Reduction::kAverage;
  const double power = IsNarrow(spec.dtype) && sums ? PowerOfTwoFor(communicator_->size()) : 1;
  Steps steps{spec, spec};
  steps.within.scale = {power, 1};
  steps.between.scale.multiplier *= power;
  return steps;
}

// Each rank of a host reduces a part of the elements there, then with its peers on the other hosts.
Status FusedCollective::AllreduceHosts(const ReduceSpec& spec, const FusedView& input,
                                       const FusedView& output) {
  const int ranks = host_.window->size();
  const int rank = host_.window->rank();
  std::vector<int64_t> offsets;
  for (int r = 0; r <= ranks; ++r) offsets.push_back(input.count() * r / ranks);
  const int64_t count = offsets[rank + 1] - offsets[rank];
  char* const part = buffers_->fusion.data();
  const FusedView own = ViewOf(spec.dtype, count, part);
  const Steps steps = StepsOf(spec);
  TFDIST_RETURN_IF_ERROR(window_.ReduceScatter(steps.within, input, offsets, own));
  Collective peers(host_.peers.get(), wait_, &buffers_->scratch);
  TFDIST_RETURN_IF_ERROR(peers.Allreduce(steps.between, part, count, part));
  return window_.Allgather(own, offsets, output);
}

Status FusedCollective::ReduceScatter(const Agreement& agreement,
                                      const std::vector<TensorView>& outputs) {
  for (const Bucket& bucket : *plan_) {
    const DType dtype = (*call_.tensors)[bucket[0]].dtype;
    TFDIST_RETURN_IF_ERROR(ReduceScatterBucket(ArithmeticFor(agreement, dtype), bucket, outputs));
  }
  return Status::Ok();
}

// Rank by rank, so that what one rank keeps of all tensors lies side by side; with several hosts,
// ranks that are peers stand together.
Status FusedCollective::ReduceScatterBucket(const Arithmetic& arithmetic, const Bucket& bucket,
                                            const std::vector<TensorView>& outputs) {
  const BucketScope recorded = Recorded(bucket);
  const int size = communicator_->size();
  const std::vector<int>& local_ranks = communicator_->topology().local_ranks;
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (host_.peers != nullptr) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return local_ranks[a] < local_ranks[b]; });
  }
  FusedView input(arithmetic.conversion);
  std::vector<int64_t> offsets = {0};
  for (int rank : order) {
    for (int index : bucket) {
      TensorView rows = (*call_.tensors)[index];
      const RowRange range = OwnRows(rows.shape[0], rank, size);
      rows.data = static_cast<char*>(rows.data) + range.begin * rows.row_bytes();
      rows.shape[0] = range.end - range.begin;
      input.Add(rows);
    }
    offsets.push_back(input.count());
  }
  const FusedView output = ViewOf(arithmetic.conversion, outputs, bucket);
  const ReduceSpec spec{arithmetic.conversion.wire, call_.reduction, arithmetic.before_rounding};
  if (OnOneHost()) return window_.ReduceScatter(spec, input, offsets, output);
  if (host_.peers != nullptr) return ReduceScatterHosts(spec, input, offsets, output);
  char* const begin = buffers_->fusion.data();
  char* const own = begin + offsets[communicator_->rank()] * SizeOf(spec.dtype);
  Pack(input, begin);
  TFDIST_RETURN_IF_ERROR(collective_.ReduceScatter(spec, begin, offsets, own));
  Unpack(output, own);
  return Status::Ok();
}

// `offsets` has the elements of each rank, peers together.
Status FusedCollective::ReduceScatterHosts(const ReduceSpec& spec, const FusedView& input,
                                           const std::vector<int64_t>& offsets,
                                           const FusedView& output) {
  const int hosts = host_.peers->size();
  std::vector<int64_t> of_locals;  // the elements of each rank of the host and its peers
  for (size_t i = 0; i < offsets.size(); i += hosts) of_locals.push_back(offsets[i]);
  const int first = host_.window->rank() * hosts;
  std::vector<int64_t> of_peers;
  for (int i = 0; i <= hosts; ++i) of_peers.push_back(offsets[first + i] - offsets[first]);

  char* const part = buffers_->fusion.data();
  char* const own = part + of_peers[host_.peers->rank()] * SizeOf(spec.dtype);
  const Steps steps = StepsOf(spec);
  TFDIST_RETURN_IF_ERROR(window_.ReduceScatter(steps.within, input, of_locals,
                                               ViewOf(spec.dtype, of_peers.back(), part)));
  Collective peers(host_.peers.get(), wait_, &buffers_->scratch);
  TFDIST_RETURN_IF_ERROR(peers.ReduceScatter(steps.between, part, of_peers, own));
  Unpack(output, own);
  return Status::Ok();
}

Status FusedCollective::Broadcast(int root, const std::vector<TensorView>& outputs) {
  for (size_t i = 0; i < outputs.size() && communicator_->rank() == root; ++i) {
    const TensorView& input = (*call_.tensors)[i];
    if (outputs[i].data == input.data || input.bytes() == 0) continue;
    std::memcpy(outputs[i].data, input.data, static_cast<size_t>(input.bytes()));
  }
  for (const Bucket& bucket : *plan_) {
    TFDIST_RETURN_IF_ERROR(BroadcastBucket(root, bucket, outputs));
  }
  return Status::Ok();
}

Status FusedCollective::BroadcastBucket(int root, const Bucket& bucket,
                                        const std::vector<TensorView>& outputs) {
  const BucketScope recorded = Recorded(bucket);
  Conversion as_it_is;
  as_it_is.wire = outputs[bucket[0]].dtype;
  const FusedView view = ViewOf(as_it_is, outputs, bucket);
  if (OnOneHost()) return window_.Broadcast(root, view);
  const int64_t bytes = view.count() * SizeOf(view.wire());
  if (view.Memory() != nullptr) return collective_.Broadcast(root, view.Memory(), bytes);
  char* const buffer = buffers_->fusion.data();
  Pack(view, buffer);
  TFDIST_RETURN_IF_ERROR(collective_.Broadcast(root, buffer, bytes));
  if (communicator_->rank() != root) Unpack(view, buffer);
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

Status FusedCollective::GatherRows(bool* equal, std::vector<int64_t>* rows) {
  const size_t tensors = call_.tensors->size();
  const size_t size = static_cast<size_t>(communicator_->size());
  std::vector<int64_t> own;
  for (const TensorView& input : *call_.tensors) own.push_back(input.shape[0]);
  own.push_back(*equal ? 1 : 0);
  TFDIST_RETURN_IF_ERROR(ExchangeRows(own));
  rows->resize(tensors * size);
  for (size_t r = 0; r < size; ++r) {
    const int64_t* const of_rank = buffers_->rows.data() + r * own.size();
    for (size_t t = 0; t < tensors; ++t) (*rows)[t * size + r] = of_rank[t];
    *equal = *equal || of_rank[tensors] != 0;
  }
  return Status::Ok();
}

Status FusedCollective::GatherSplits(const std::vector<int64_t>& splits,
                                     std::vector<int64_t>* received) {
  const int size = communicator_->size();
  TFDIST_RETURN_IF_ERROR(ExchangeRows(splits));
  received->clear();
  for (int r = 0; r < size; ++r) {
    received->push_back(buffers_->rows[r * size + communicator_->rank()]);
  }
  return Status::Ok();
}

Status FusedCollective::Allgather(const std::vector<int64_t>& rows, const Allocate& allocate) {
  const std::vector<TensorView>& inputs = *call_.tensors;
  const int size = communicator_->size();
  Status allocated;
  for (size_t t = 0; t < inputs.size(); ++t) {
    std::vector<int64_t> shape = inputs[t].shape;
    std::vector<int64_t> bytes;
    shape[0] = 0;
    for (int r = 0; r < size; ++r) {
      const int64_t count = rows[t * size + r];
      shape[0] += count;
      bytes.push_back(count * inputs[t].row_bytes());
    }
    TensorView output;
    const Status status = allocate(static_cast<int>(t), shape, &output);
    if (!status.ok()) {
      // The peers have memory and are on their way: take part, and throw the result away.
      TFDIST_RETURN_IF_ERROR(buffers_->fusion.Reserve(shape[0] * inputs[t].row_bytes()));
      output.data = buffers_->fusion.data();
      allocated = status;
    }
    const int tensor = static_cast<int>(t);
    const Bucket alone = wait_->trace() != nullptr ? Bucket{tensor} : Bucket();
    const BucketScope recorded(wait_->trace(), call_, alone, tensor);
    TFDIST_RETURN_IF_ERROR(AllgatherTensor(inputs[t], bytes, output.data));
  }
  return allocated;
}

// Rank r gives bytes[r].
Status FusedCollective::AllgatherTensor(const TensorView& input, const std::vector<int64_t>& bytes,
                                        void* output) {
  if (!OnOneHost()) return collective_.Allgather(input.data, bytes, output);
  std::vector<int64_t> offsets = {0};
  for (int64_t more : bytes) offsets.push_back(offsets.back() + more);
  const FusedView own = ViewOf(DType::kUint8, input.bytes(), input.data);
  const FusedView all = ViewOf(DType::kUint8, offsets.back(), output);
  return window_.Allgather(own, offsets, all);
}

Status FusedCollective::Alltoall(const std::vector<int64_t>& splits,
                                 const std::vector<int64_t>& received, const Allocate& allocate) {
  const TensorView& input = (*call_.tensors)[0];
  const int size = communicator_->size();
  std::vector<int64_t> shape = input.shape;
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> receive_bytes;
  shape[0] = 0;
  for (int r = 0; r < size; ++r) {
    shape[0] += received[r];
    send_bytes.push_back(splits[r] * input.row_bytes());
    receive_bytes.push_back(received[r] * input.row_bytes());
  }
  TensorView output;
  const Status allocated = allocate(0, shape, &output);
  if (!allocated.ok()) {
    TFDIST_RETURN_IF_ERROR(buffers_->fusion.Reserve(shape[0] * input.row_bytes()));
    output.data = buffers_->fusion.data();
  }
  TFDIST_RETURN_IF_ERROR(collective_.Alltoall(input.data, send_bytes, output.data, receive_bytes));
  return allocated;
}

}  // namespace tfdist
