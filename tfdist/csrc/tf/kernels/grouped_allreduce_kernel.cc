// The CPU kernel of TfdistGroupedAllreduce.
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

class GroupedAllreduceKernel : public tensorflow::OpKernel {
 public:
  explicit GroupedAllreduceKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    std::string reduction, compression;
    OP_REQUIRES_OK(context, context->GetAttr("reduction", &reduction));
    OP_REQUIRES_OK(context, context->GetAttr("compression", &compression));
    OP_REQUIRES_OK(context, context->GetAttr("label", &options_.name));
    OP_REQUIRES_OK(context, context->GetAttr("tensor_names", &options_.tensor_names));
    OP_REQUIRES_OK(context, ToTensorFlow(ToReduction(reduction, &options_.reduction)));
    OP_REQUIRES_OK(context, ToTensorFlow(ToCompression(compression, &options_.compression)));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(CurrentEngine(&engine)));
    const int tensors = context->num_outputs();
    AllreduceOptions options = options_;
    options.prescale = context->input(tensors).scalar<double>()();
    options.postscale = context->input(tensors + 1).scalar<double>()();
    std::vector<TensorView> inputs(tensors), outputs(tensors);
    for (int i = 0; i < tensors; ++i) {
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK(context, ToTensorFlow(ToTensorView(context->input(i), &inputs[i])));
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, context->input(i).shape(), &output));
      OP_REQUIRES_OK(context, ToTensorFlow(ToTensorView(*output, &outputs[i])));
    }
    OP_REQUIRES_OK(context, ToTensorFlow(engine->Allreduce(options, inputs, outputs)));
  }

 private:
  AllreduceOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedAllreduce").Device(tensorflow::DEVICE_CPU),
                        GroupedAllreduceKernel);

}  // namespace
}  // namespace tfdist
