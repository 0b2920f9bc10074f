#include "nccl/device_adasum.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/algorithm/adasum.h"
#include "cuda/pack_kernels.h"

namespace tfdist {

// Slices have one length, a multiple of kPackAlignment, so what is behind the last tensor belongs
// to some slice too and means nothing. Between tensors there are zeros, which count as theirs.
struct DeviceAdasum::Layout {
  DType wire;                     // what travels
  DType type;                     // what is kept while it is folded
  int64_t slice;                  // elements
  std::vector<AdasumSpan> spans;  // of the tensors within this rank's slice

  int64_t wire_bytes() const { return slice * SizeOf(wire); }
  int64_t type_bytes() const { return slice * SizeOf(type); }
};

DeviceAdasum::DeviceAdasum(const AdasumTools& tools, int rank, int size)
    : tools_(tools),
      rank_(rank),
      size_(size),
      packed_(tools.driver),
      incoming_(tools.driver),
      parts_(tools.driver),
      products_(tools.driver) {}

Status DeviceAdasum::Open(const AdasumTools& tools, const DeviceFacts& device,
                          const Topology& topology, KernelCache* kernels,
                          std::unique_ptr<DeviceAdasum>* adasum) {
  std::unique_ptr<DeviceAdasum> made(new DeviceAdasum(tools, topology.rank, topology.size));
  TFDIST_RETURN_IF_ERROR(AdasumPair::Open(tools.driver, device, kernels, &made->pair_));
  *adasum = std::move(made);
  return Status::Ok();
}

Status DeviceAdasum::Allreduce(const AdasumCall& call, const std::vector<TensorView>& inputs,
                               const std::vector<TensorView>& outputs, CudaStream stream,
                               Wait* wait) {
  const int64_t count = Packer::BufferCount(inputs);
  if (count == 0) return Status::Ok();
  if (!IsFloating(inputs[0].dtype)) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("adasum received ") + NameOf(inputs[0].dtype) +
                      ", but needs a floating dtype. Use sum, or cast the tensor to float32.");
  }
  Layout layout;
  layout.wire = WireType(inputs[0].dtype, call.compression);
  layout.type = AdasumType(layout.wire);
  layout.slice = PackAligned((count + size_ - 1) / size_);
  const int64_t begin = layout.slice * rank_;
  int64_t start = 0;
  for (const TensorView& input : inputs) {
    const int64_t end = start + PackAligned(input.count());
    const int64_t from = std::clamp<int64_t>(start - begin, 0, layout.slice);
    const int64_t to = std::clamp<int64_t>(end - begin, 0, layout.slice);
    layout.spans.push_back({from, to - from});
    start = end;
  }
  TFDIST_RETURN_IF_ERROR(packed_.Reserve(size_ * layout.wire_bytes(), stream));
  const bool zeros = outputs.empty();
  TFDIST_RETURN_IF_ERROR(
      zeros ? tools_.driver->Clear(packed_.data(), size_ * layout.wire_bytes(), stream)
            : tools_.packer->Pack(inputs, layout.wire, call.prescale, packed_.data(), stream));
  if (size_ > 1) {
    TFDIST_RETURN_IF_ERROR(Scatter(layout, stream, wait));
    TFDIST_RETURN_IF_ERROR(Fold(layout, stream, wait));
    TFDIST_RETURN_IF_ERROR(Gather(layout, stream, wait));
  }
  return tools_.packer->Unpack(outputs, layout.wire, call.postscale, packed_.data(), stream);
}

// Slice r of everybody's gradients goes to rank r, which keeps them one behind the other.
Status DeviceAdasum::Scatter(const Layout& layout, CudaStream stream, Wait* wait) {
  const int64_t bytes = layout.wire_bytes();
  const bool widens = layout.wire != layout.type;
  TFDIST_RETURN_IF_ERROR(parts_.Reserve(size_ * layout.type_bytes(), stream));
  if (widens) TFDIST_RETURN_IF_ERROR(incoming_.Reserve(size_ * bytes, stream));
  char* const received = widens ? incoming_.data() : parts_.data();
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sends.push_back({peer, packed_.data() + peer * bytes, bytes});
    receives.push_back({peer, received + peer * bytes, bytes});
  }
  TFDIST_RETURN_IF_ERROR(
      tools_.driver->Copy(received + rank_ * bytes, packed_.data() + rank_ * bytes, bytes, stream));
  TFDIST_RETURN_IF_ERROR(tools_.ranks->Exchange(sends, receives, stream, wait));
  if (!widens) return Status::Ok();
  const TensorView all = {layout.type, {size_ * layout.slice}, parts_.data()};
  return tools_.packer->Unpack({all}, layout.wire, 1, received, stream);
}

// A binary tree of neighbours, as Collective::Adasum folds it: the last of an odd number passes on
// unchanged. The first part becomes the result.
Status DeviceAdasum::Fold(const Layout& layout, CudaStream stream, Wait* wait) {
  const size_t tensors = layout.spans.size();
  const size_t most = static_cast<size_t>(size_ / 2) * tensors * 3;
  TFDIST_RETURN_IF_ERROR(products_.Reserve(static_cast<int64_t>(most * sizeof(double)), stream));
  double* const products = reinterpret_cast<double*>(products_.data());
  std::vector<int> live(static_cast<size_t>(size_));
  std::iota(live.begin(), live.end(), 0);
  const auto part = [&](size_t place) { return parts_.data() + live[place] * layout.type_bytes(); };
  while (live.size() > 1) {
    const size_t pairs = live.size() / 2;
    for (size_t pair = 0; pair < pairs; ++pair) {
      TFDIST_RETURN_IF_ERROR(pair_->Multiply(layout.type, layout.spans, part(2 * pair),
                                             part(2 * pair + 1), products + pair * tensors * 3,
                                             stream));
    }
    TFDIST_RETURN_IF_ERROR(tools_.ranks->AllReduce(products, products, pairs * tensors * 3,
                                                   NcclType::kFloat64, NcclOperator::kSum, stream,
                                                   wait));
    for (size_t pair = 0; pair < pairs; ++pair) {
      TFDIST_RETURN_IF_ERROR(pair_->Combine(layout.type, layout.spans,
                                            products + pair * tensors * 3, part(2 * pair + 1),
                                            part(2 * pair), stream));
    }
    std::vector<int> next;
    for (size_t place = 0; place < live.size(); place += 2) next.push_back(live[place]);
    live = std::move(next);
  }
  return Status::Ok();
}

// Everybody's slice of the result, rounded to what travels.
Status DeviceAdasum::Gather(const Layout& layout, CudaStream stream, Wait* wait) {
  const int64_t bytes = layout.wire_bytes();
  char* const own = packed_.data() + rank_ * bytes;
  const TensorView result = {layout.type, {layout.slice}, parts_.data()};
  TFDIST_RETURN_IF_ERROR(tools_.packer->Pack({result}, layout.wire, 1, own, stream));
  return tools_.ranks->AllGather(own, packed_.data(), static_cast<size_t>(bytes), NcclType::kUint8,
                                 stream, wait);
}

}  // namespace tfdist
