#include "cuda/adasum_pair.h"

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// Blocks that a multiprocessor has at once, with registers to spare.
constexpr int kBlocksAMultiprocessor = 8;

// a.b, a.a and b.b
constexpr int kProducts = 3;

// Spans of one launch.
struct Group {
  size_t first = 0;
  int count = 0;
  AdasumTable table;

  int64_t pieces() const { return table.pieces[count]; }
};

Group GroupFrom(const std::vector<AdasumSpan>& spans, size_t first) {
  Group group;
  group.first = first;
  group.count = static_cast<int>(std::min<size_t>(spans.size() - first, kMostAdasumSpans));
  group.table.pieces[0] = 0;
  for (int s = 0; s < group.count; ++s) {
    const AdasumSpan& span = spans[first + static_cast<size_t>(s)];
    const int64_t pieces = (span.count + kAdasumPiece - 1) / kAdasumPiece;
    group.table.starts[s] = span.start;
    group.table.counts[s] = span.count;
    group.table.pieces[s + 1] = group.table.pieces[s] + static_cast<int32_t>(pieces);
  }
  return group;
}

}  // namespace

Status AdasumPair::Open(CudaDriver* driver, const DeviceFacts& device, KernelCache* kernels,
                        std::unique_ptr<AdasumPair>* pair) {
  std::string image;
  TFDIST_RETURN_IF_ERROR(kernels->Image(AdasumKernels(), device.architecture, &image));
  std::unique_ptr<AdasumPair> made(new AdasumPair(driver, device.multiprocessors));
  TFDIST_RETURN_IF_ERROR(driver->Load(image, &made->module_));
  *pair = std::move(made);
  return Status::Ok();
}

Status AdasumPair::Multiply(DType type, const std::vector<AdasumSpan>& spans, const void* a,
                            const void* b, double* products, CudaStream stream) {
  for (size_t first = 0; first < spans.size(); first += kMostAdasumSpans) {
    Group group = GroupFrom(spans, first);
    const int64_t bytes = group.pieces() * kProducts * static_cast<int64_t>(sizeof(double));
    TFDIST_RETURN_IF_ERROR(partials_.Reserve(bytes, stream));
    char* partials = partials_.data();
    if (group.pieces() > 0) {
      void* arguments[] = {&group.table, &group.count, &a, &b, &partials};
      TFDIST_RETURN_IF_ERROR(Launch(std::string("adasum_products_") + NameOf(type), group.pieces(),
                                    arguments, stream));
    }
    // Also where there are no pieces: the products are zeros then.
    double* own = products + first * kProducts;
    void* arguments[] = {&group.table, &group.count, &partials, &own};
    TFDIST_RETURN_IF_ERROR(Launch("adasum_sum", group.count, arguments, stream));
  }
  return Status::Ok();
}

Status AdasumPair::Combine(DType type, const std::vector<AdasumSpan>& spans, const double* products,
                           const void* b, void* a, CudaStream stream) {
  for (size_t first = 0; first < spans.size(); first += kMostAdasumSpans) {
    Group group = GroupFrom(spans, first);
    if (group.pieces() == 0) continue;
    const double* own = products + first * kProducts;
    void* arguments[] = {&group.table, &group.count, &own, &b, &a};
    TFDIST_RETURN_IF_ERROR(
        Launch(std::string("adasum_combine_") + NameOf(type), group.pieces(), arguments, stream));
  }
  return Status::Ok();
}

Status AdasumPair::Launch(const std::string& name, int64_t blocks, void** arguments,
                          CudaStream stream) {
  CudaFunction& function = functions_[name];
  if (function == nullptr) TFDIST_RETURN_IF_ERROR(driver_->Find(module_, name, &function));
  const int64_t most = int64_t{multiprocessors_} * kBlocksAMultiprocessor;
  return driver_->Launch(function, static_cast<int>(std::min(blocks, most)), kAdasumThreads,
                         arguments, stream);
}

}  // namespace tfdist
