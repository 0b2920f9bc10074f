#include "tf/kernels/collective_kernel.h"

#include <memory>

#include "core/engine/world.h"
#include "core/value/calling_thread.h"
#include "tensorflow/core/platform/env.h"
#include "tf/conversion.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace tfdist {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

Status FindPlace(OpKernelContext* context, OnGpu* gpu) {
  tensorflow::DeviceContext* const device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) {
    return Status(
        StatusCode::kInternal,
        "TensorFlow provided no stream for a collective on a GPU. Set TFDIST_GPU_OPERATIONS=mpi.");
  }
  gpu->number = device->stream()->parent()->device_ordinal();
  gpu->stream = device->stream()->platform_specific_handle().stream;
  return Status::Ok();
}

void HostKernel::Compute(OpKernelContext* context) {
  std::shared_ptr<Engine> engine;
  Status status = World::Find(process_set(), &engine);
  if (status.ok()) status = Run(context, engine.get(), nullptr);
  // The caller gets the error; OP_REQUIRES_OK would also log it, and a user would read it twice.
  if (!status.ok()) context->SetStatus(ToTensorFlow(status));
}

void GpuKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  const Device::Done end = [context, done](const Status& status) {
    if (!status.ok()) context->SetStatus(ToTensorFlow(status));
    done();
  };
  // Collectives follow each other by their input `order`, so no two of these run at a time.
  tensorflow::Env::Default()->SchedClosure([this, context, end, caller = CallingThread()] {
    const CallingThreadScope scope(caller);
    std::shared_ptr<Engine> engine;
    OnGpu gpu;
    gpu.done = end;
    Status status = World::Find(process_set(), &engine);
    if (status.ok()) status = FindPlace(context, &gpu);
    if (status.ok()) status = Run(context, engine.get(), &gpu);
    if (!status.ok()) end(status);
  });
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

Status ReadFactors(const OpKernelContext& context, int first, AllreduceOptions* options) {
  int64_t weight = 0;
  TFDIST_RETURN_IF_ERROR(ReadScalar(context, first, "prescale_factor", &options->prescale));
  TFDIST_RETURN_IF_ERROR(ReadScalar(context, first + 1, "postscale_factor", &options->postscale));
  TFDIST_RETURN_IF_ERROR(ReadScalar(context, first + 2, "weight", &weight));
  return ToWeight(options->name, weight, &options->weight);
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
