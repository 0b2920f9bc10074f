#include "tf/kernels/collective_kernel.h"

#include <memory>

#include "core/world.h"
#include "tf/conversion.h"

namespace tfdist {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

CollectiveKernel::CollectiveKernel(OpKernelConstruction* context) : OpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
}

void CollectiveKernel::Compute(OpKernelContext* context) {
  std::shared_ptr<Engine> engine;
  OP_REQUIRES_OK(context, ToTensorFlow(World::Find(process_set_, &engine)));
  OP_REQUIRES_OK(context, ToTensorFlow(Run(context, engine.get())));
}

Status ViewInputs(const OpKernelContext& context, int count, std::vector<TensorView>* views) {
  views->resize(count);
  for (int i = 0; i < count; ++i) {
    TFDIST_RETURN_IF_ERROR(ToTensorView(context.input(i), &(*views)[i]));
  }
  return Status::Ok();
}

Status AllocateOutput(OpKernelContext* context, int index, const std::vector<int64_t>& shape,
                      TensorView* view) {
  Tensor* output = nullptr;
  TFDIST_RETURN_IF_ERROR(
      FromTensorFlow(context->allocate_output(index, tensorflow::TensorShape(shape), &output)));
  return ToTensorView(*output, view);
}

Status ForwardOrAllocate(OpKernelContext* context, int index, TensorView* view) {
  Tensor* output = nullptr;
  TFDIST_RETURN_IF_ERROR(FromTensorFlow(context->forward_input_or_allocate_output(
      {index}, index, context->input(index).shape(), &output)));
  return ToTensorView(*output, view);
}

absl::Status ReadReduction(OpKernelConstruction* context, AllreduceOptions* options) {
  std::string reduction, compression;
  TF_RETURN_IF_ERROR(context->GetAttr("reduction", &reduction));
  TF_RETURN_IF_ERROR(context->GetAttr("compression", &compression));
  TF_RETURN_IF_ERROR(context->GetAttr("label", &options->name));
  TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &options->tensor_names));
  TF_RETURN_IF_ERROR(ToTensorFlow(ToReduction(reduction, &options->reduction)));
  return ToTensorFlow(ToCompression(compression, &options->compression));
}

}  // namespace tfdist
