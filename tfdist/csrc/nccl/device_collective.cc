#include "nccl/device_collective.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/algorithm/collective.h"
#include "core/algorithm/fused_collective.h"
#include "cuda/pack_kernels.h"
#include "nccl/wire_type.h"

namespace tfdist {
namespace {

// Factors around NCCL's reduction.
struct Factors {
  double pack;
  double unpack;
};

// NCCL's sum rounds to the type that travels after every addition. One of 16 bits is divided by a
// power of two before it, which costs no bits of normal numbers, so that it cannot overflow where
// its average does not.
Factors FactorsOf(const DeviceReduce& reduce, DType wire, int size) {
  Factors factors{reduce.prescale, reduce.postscale};
  if (reduce.share >= 0) {
    factors.pack *= reduce.share;
    return factors;
  }
  const bool averages = reduce.reduction == Reduction::kAverage;
  const bool sums = averages || reduce.reduction == Reduction::kSum;
  const double power = IsNarrow(wire) && sums ? PowerOfTwoFor(size) : 1;
  factors.pack /= power;
  factors.unpack *= averages ? power / size : power;
  return factors;
}

// One tensor that NCCL can reduce where it lies.
bool ReducesAsItIs(const DeviceReduce& reduce, const std::vector<TensorView>& inputs, DType wire) {
  return inputs.size() == 1 && inputs[0].dtype == wire && !IsNarrow(wire) && reduce.share < 0 &&
         reduce.prescale == 1 && reduce.postscale == 1 && !reduce.by_hosts &&
         reduce.reduction != Reduction::kAdasum;
}

// What rank `rank` keeps of each tensor in a reducescatter.
std::vector<TensorView> RowsOf(const std::vector<TensorView>& tensors, int rank, int size) {
  std::vector<TensorView> parts = tensors;
  for (TensorView& part : parts) {
    const RowRange range = OwnRows(part.shape[0], rank, size);
    part.data = static_cast<char*>(part.data) + range.begin * part.row_bytes();
    part.shape[0] = range.end - range.begin;
  }
  return parts;
}

std::vector<TensorView> Those(const std::vector<TensorView>& tensors, const Bucket& bucket) {
  std::vector<TensorView> those;
  for (int index : bucket) those.push_back(tensors[index]);
  return those;
}

// "bucket 2: 12 tensors, 8388608 bytes".
std::string NameOf(size_t number, const std::vector<TensorView>& tensors, DType wire) {
  int64_t bytes = 0;
  for (const TensorView& tensor : tensors) bytes += tensor.count() * SizeOf(wire);
  return "bucket " + std::to_string(number) + ": " + std::to_string(tensors.size()) +
         (tensors.size() == 1 ? " tensor, " : " tensors, ") + std::to_string(bytes) + " bytes";
}

}  // namespace

DeviceCollective::DeviceCollective(CudaDriver* driver, const Topology& topology)
    : driver_(driver),
      topology_(topology),
      buffer_(driver),
      staging_(driver, topology_, [this](const Wait& wait) { return ranks_->Check(wait); }) {}

Status DeviceCollective::Open(CudaDriver* driver, const DeviceFacts& device, KernelCache* kernels,
                              const Topology& topology,
                              std::unique_ptr<DeviceCollective>* collective) {
  std::unique_ptr<DeviceCollective> made(new DeviceCollective(driver, topology));
  TFDIST_RETURN_IF_ERROR(Packer::Open(driver, device, kernels, &made->packer_));
  TFDIST_RETURN_IF_ERROR(driver->NewStream(/*urgent=*/true, &made->stream_));
  TFDIST_RETURN_IF_ERROR(driver->NewEvent(&made->ready_));
  *collective = std::move(made);
  return Status::Ok();
}

// What cannot be given back now is the driver's when the process ends.
DeviceCollective::~DeviceCollective() {
  for (CudaEvent event : events_) static_cast<void>(driver_->DeleteEvent(event));
  if (ready_ != nullptr) static_cast<void>(driver_->DeleteEvent(ready_));
  if (stream_ != nullptr) static_cast<void>(driver_->DeleteStream(stream_));
}

void DeviceCollective::Connect(Communicator* transport, NcclRanks* ranks,
                               HostHierarchy* hierarchy) {
  transport_ = transport;
  ranks_ = ranks;
  hierarchy_ = hierarchy;
}

Status DeviceCollective::Plan(const DeviceReduce& reduce, const std::vector<TensorView>& inputs) {
  std::vector<DType> dtypes;
  std::vector<int64_t> bytes;
  for (const TensorView& input : inputs) {
    dtypes.push_back(input.dtype);
    bytes.push_back(input.count() * SizeOf(NcclWire(input.dtype, reduce.compression)));
  }
  plan_ = plans_.Find(dtypes, bytes, reduce.fusion_threshold_bytes);
  return Status::Ok();
}

Status DeviceCollective::PrepareAllreduce(const DeviceReduce& reduce,
                                          const std::vector<TensorView>& inputs) {
  TFDIST_RETURN_IF_ERROR(Plan(reduce, inputs));
  int64_t bytes = 0, parts_bytes = 0;
  for (const Bucket& bucket : *plan_) {
    const std::vector<TensorView> tensors = Those(inputs, bucket);
    const DType wire = NcclWire(tensors[0].dtype, reduce.compression);
    const bool needs_none = tensors[0].data != nullptr && ReducesAsItIs(reduce, tensors, wire);
    const int64_t count = Packer::BufferCount(tensors);
    const int64_t room = reduce.by_hosts ? HostHierarchy::Padded(count, topology_) : count;
    if (!needs_none) bytes = std::max(bytes, room * SizeOf(wire));
    parts_bytes =
        std::max(parts_bytes, Collective::AdasumBytes(wire, count, tensors.size(), topology_.size));
  }
  TFDIST_RETURN_IF_ERROR(buffer_.Reserve(bytes, stream_));
  if (reduce.reduction != Reduction::kAdasum) return Status::Ok();
  TFDIST_RETURN_IF_ERROR(staging_.Reserve(bytes));
  TFDIST_RETURN_IF_ERROR(parts_.Reserve(parts_bytes));
  return scratch_.Reserve(Collective::ScratchBytes(topology_.size));
}

Status DeviceCollective::PrepareReduceScatter(const DeviceReduce& reduce,
                                              const std::vector<TensorView>& inputs) {
  TFDIST_RETURN_IF_ERROR(Plan(reduce, inputs));
  int64_t bytes = 0;
  for (const Bucket& bucket : *plan_) {
    const std::vector<TensorView> tensors = Those(inputs, bucket);
    const DType wire = NcclWire(tensors[0].dtype, reduce.compression);
    const int64_t most = Packer::BufferCount(RowsOf(tensors, 0, topology_.size));
    bytes = std::max(bytes, most * topology_.size * SizeOf(wire));
  }
  return buffer_.Reserve(bytes, stream_);
}

Status DeviceCollective::Run(const Step& step, const std::function<Status()>& body) {
  if (step.made.mark != nullptr) {
    TFDIST_RETURN_IF_ERROR(driver_->WaitFor(stream_, step.made.mark));
  } else if (step.made.stream != nullptr) {
    TFDIST_RETURN_IF_ERROR(driver_->Record(ready_, step.made.stream));
    TFDIST_RETURN_IF_ERROR(driver_->WaitFor(stream_, ready_));
  }
  TFDIST_RETURN_IF_ERROR(body());
  TFDIST_RETURN_IF_ERROR(TakeEvent(step.done));
  return driver_->Record(*step.done, stream_);
}

Status DeviceCollective::Allreduce(const DeviceReduce& reduce,
                                   const std::vector<TensorView>& inputs,
                                   const std::vector<TensorView>& outputs, const Step& step) {
  return Run(step, [&] {
    for (size_t number = 0; number < plan_->size(); ++number) {
      const Bucket& bucket = (*plan_)[number];
      const std::vector<TensorView> to = outputs.empty() ? outputs : Those(outputs, bucket);
      const std::vector<TensorView> from = Those(inputs, bucket);
      const ProfilerScope shown(step.profiler, [&] {
        return NameOf(number, from, NcclWire(from[0].dtype, reduce.compression));
      });
      TFDIST_RETURN_IF_ERROR(AllreduceBucket(reduce, from, to, step.wait));
    }
    return Status::Ok();
  });
}

Status DeviceCollective::AllreduceBucket(const DeviceReduce& reduce,
                                         const std::vector<TensorView>& inputs,
                                         const std::vector<TensorView>& outputs, Wait* wait) {
  const DType wire = NcclWire(inputs[0].dtype, reduce.compression);
  const NcclType type = ToNcclType(wire);
  const int64_t count = Packer::BufferCount(inputs);
  if (count == 0) return Status::Ok();
  NcclOperator op = ToNcclOperator(reduce.reduction, inputs[0].dtype);
  const bool zeros = outputs.empty();
  if (ReducesAsItIs(reduce, inputs, wire)) {
    if (reduce.reduction == Reduction::kAverage) op = NcclOperator::kAverage;
    if (zeros) TFDIST_RETURN_IF_ERROR(driver_->Clear(buffer_.data(), inputs[0].bytes(), stream_));
    return ranks_->AllReduce(zeros ? buffer_.data() : inputs[0].data,
                             zeros ? buffer_.data() : outputs[0].data,
                             static_cast<size_t>(inputs[0].count()), type, op, stream_, wait);
  }
  const Factors factors = FactorsOf(reduce, wire, topology_.size);
  if (zeros || reduce.share == 0) {
    TFDIST_RETURN_IF_ERROR(driver_->Clear(buffer_.data(), count * SizeOf(wire), stream_));
  } else {
    TFDIST_RETURN_IF_ERROR(packer_->Pack(inputs, wire, factors.pack, buffer_.data(), stream_));
  }
  if (reduce.reduction == Reduction::kAdasum) {
    TFDIST_RETURN_IF_ERROR(AdasumBuffer(inputs, wire, wait));
  } else if (reduce.by_hosts) {
    TFDIST_RETURN_IF_ERROR(hierarchy_->Allreduce(buffer_.data(), count, wire, op, stream_, wait));
  } else {
    TFDIST_RETURN_IF_ERROR(ranks_->AllReduce(buffer_.data(), buffer_.data(),
                                             static_cast<size_t>(count), type, op, stream_, wait));
  }
  return packer_->Unpack(outputs, wire, factors.unpack, buffer_.data(), stream_);
}

// By the processor and the transport. The zeros behind a tensor change nothing.
Status DeviceCollective::AdasumBuffer(const std::vector<TensorView>& inputs, DType wire,
                                      Wait* wait) {
  std::vector<int64_t> counts;
  for (const TensorView& input : inputs) counts.push_back(PackAligned(input.count()));
  Collective ranks(transport_, wait, &scratch_);
  return staging_.Run(
      buffer_.data(), Packer::BufferCount(inputs) * SizeOf(wire),
      [&](char* copy) { return ranks.Adasum(wire, counts, copy, &parts_); }, stream_, wait);
}

Status DeviceCollective::ReduceScatter(const DeviceReduce& reduce,
                                       const std::vector<TensorView>& inputs,
                                       const std::vector<TensorView>& outputs, const Step& step) {
  return Run(step, [&] {
    for (size_t number = 0; number < plan_->size(); ++number) {
      const Bucket& bucket = (*plan_)[number];
      const std::vector<TensorView> from = Those(inputs, bucket);
      const ProfilerScope shown(step.profiler, [&] {
        return NameOf(number, from, NcclWire(from[0].dtype, reduce.compression));
      });
      TFDIST_RETURN_IF_ERROR(ReduceScatterBucket(reduce, from, Those(outputs, bucket), step.wait));
    }
    return Status::Ok();
  });
}

// Rank by rank, so that what one rank keeps of all tensors lies side by side. All have as much room
// as rank 0, which has the most rows; what is behind the rows of a rank has no meaning.
Status DeviceCollective::ReduceScatterBucket(const DeviceReduce& reduce,
                                             const std::vector<TensorView>& inputs,
                                             const std::vector<TensorView>& outputs, Wait* wait) {
  const DType wire = NcclWire(inputs[0].dtype, reduce.compression);
  const NcclType type = ToNcclType(wire);
  const int size = topology_.size;
  const int64_t count = Packer::BufferCount(RowsOf(inputs, 0, size));
  if (count == 0) return Status::Ok();
  const Factors factors = FactorsOf(reduce, wire, size);
  const auto part = [&](int rank) { return buffer_.data() + rank * count * SizeOf(wire); };
  for (int rank = 0; rank < size; ++rank) {
    TFDIST_RETURN_IF_ERROR(
        packer_->Pack(RowsOf(inputs, rank, size), wire, factors.pack, part(rank), stream_));
  }
  char* const own = part(topology_.rank);
  TFDIST_RETURN_IF_ERROR(
      ranks_->ReduceScatter(buffer_.data(), own, static_cast<size_t>(count), type,
                            ToNcclOperator(reduce.reduction, inputs[0].dtype), stream_, wait));
  return packer_->Unpack(outputs, wire, factors.unpack, own, stream_);
}

Status DeviceCollective::Broadcast(int root, const std::vector<TensorView>& inputs,
                                   const std::vector<TensorView>& outputs, const Step& step) {
  return Run(step, [&] {
    for (size_t t = 0; t < inputs.size(); ++t) {
      if (inputs[t].bytes() == 0) continue;
      TFDIST_RETURN_IF_ERROR(ranks_->Broadcast(inputs[t].data, outputs[t].data,
                                               static_cast<size_t>(inputs[t].bytes()),
                                               NcclType::kUint8, root, stream_, step.wait));
    }
    return Status::Ok();
  });
}

Status DeviceCollective::Allgather(const std::vector<TensorView>& inputs,
                                   const std::vector<int64_t>& rows,
                                   const std::vector<TensorView>& outputs, const Step& step) {
  const size_t size = static_cast<size_t>(topology_.size);
  return Run(step, [&] {
    for (size_t t = 0; t < inputs.size(); ++t) {
      std::vector<int64_t> bytes(rows.begin() + t * size, rows.begin() + (t + 1) * size);
      for (int64_t& of_rank : bytes) of_rank *= inputs[t].row_bytes();
      const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
      if (outputs.empty()) TFDIST_RETURN_IF_ERROR(buffer_.Reserve(all, stream_));
      void* const output = outputs.empty() ? buffer_.data() : outputs[t].data;
      TFDIST_RETURN_IF_ERROR(AllgatherTensor(inputs[t], bytes, output, step.wait));
    }
    return Status::Ok();
  });
}

// Rank r gives bytes[r].
Status DeviceCollective::AllgatherTensor(const TensorView& input, const std::vector<int64_t>& bytes,
                                         void* output, Wait* wait) {
  const bool alike = std::count(bytes.begin(), bytes.end(), bytes[0]) == topology_.size;
  if (alike && bytes[0] == 0) return Status::Ok();
  if (alike) {
    return ranks_->AllGather(input.data, output, static_cast<size_t>(bytes[0]), NcclType::kUint8,
                             stream_, wait);
  }
  std::vector<Transfer> sends, receives;
  char* next = static_cast<char*>(output);
  for (int r = 0; r < topology_.size; ++r) {
    sends.push_back({r, input.data, bytes[topology_.rank]});
    receives.push_back({r, next, bytes[r]});
    next += bytes[r];
  }
  return ranks_->Exchange(sends, receives, stream_, wait);
}

Status DeviceCollective::Alltoall(const TensorView& input, const std::vector<int64_t>& sent,
                                  const std::vector<int64_t>& received, const TensorView& output,
                                  const Step& step) {
  std::vector<Transfer> sends, receives;
  char* from = static_cast<char*>(input.data);
  char* to = static_cast<char*>(output.data);
  for (int r = 0; r < topology_.size; ++r) {
    sends.push_back({r, from, sent[r] * input.row_bytes()});
    receives.push_back({r, to, received[r] * input.row_bytes()});
    from += sends.back().bytes;
    to += receives.back().bytes;
  }
  return Run(step, [&] { return ranks_->Exchange(sends, receives, stream_, step.wait); });
}

Status DeviceCollective::Mark(CudaStream stream, CudaEvent* mark) {
  TFDIST_RETURN_IF_ERROR(TakeEvent(mark));
  const Status recorded = driver_->Record(*mark, stream);
  if (!recorded.ok()) Release(*mark);
  return recorded;
}

void DeviceCollective::Release(CudaEvent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_events_.push_back(event);
}

Status DeviceCollective::TakeEvent(CudaEvent* event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_events_.empty()) {
    TFDIST_RETURN_IF_ERROR(driver_->NewEvent(event));
    events_.push_back(*event);
    return Status::Ok();
  }
  *event = free_events_.back();
  free_events_.pop_back();
  return Status::Ok();
}

}  // namespace tfdist
