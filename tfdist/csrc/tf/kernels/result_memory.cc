#include "tf/kernels/result_memory.h"

#include <atomic>
#include <memory>

#include "tf/conversion.h"

namespace tfdist {
namespace {

std::atomic<int64_t> bytes_of_all{0};

}  // namespace

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

ResultMemory::~ResultMemory() { bytes_of_all -= kept_bytes_; }

Status ResultMemory::Give(OpKernelContext* context, int count, std::vector<TensorView>* views) {
  views->resize(count);
  kept_.resize(count);
  for (int i = 0; i < count; ++i) TFDIST_RETURN_IF_ERROR(GiveOne(context, i, &(*views)[i]));
  return Status::Ok();
}

Status ResultMemory::GiveOne(OpKernelContext* context, int index, TensorView* view) {
  const Tensor& input = context->input(index);
  const std::unique_ptr<Tensor> forwarded =
      context->forward_input(index, index, input.dtype(), input.shape(),
                             context->output_memory_type(index), context->output_alloc_attr(index));
  if (forwarded != nullptr) {
    context->set_output(index, *forwarded);
    return ToTensorView(*forwarded, view);
  }
  const Tensor& kept = kept_[index];
  // One reference is this one, so nobody else can get another meanwhile.
  if (kept.RefCountIsOne() && kept.dtype() == input.dtype() && kept.shape() == input.shape()) {
    context->set_output(index, kept);
    return ToTensorView(kept, view);
  }
  Tensor* output = nullptr;
  TFDIST_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(index, input.shape(), &output)));
  Keep(index, *output);
  return ToTensorView(*output, view);
}

// Keeps `result` in place of what was kept for this output before, if there is room for it.
void ResultMemory::Keep(int index, const Tensor& result) {
  const int64_t before = kept_[index].TotalBytes();
  const int64_t more = static_cast<int64_t>(result.TotalBytes()) - before;
  const bool fits = bytes_of_all.fetch_add(more) + more <= kMostBytes;
  kept_[index] = fits ? result : Tensor();
  const int64_t released = fits ? 0 : more + before;
  bytes_of_all -= released;
  kept_bytes_ += more - released;
}

}  // namespace tfdist
