// The CPU kernel of TfdistAllgather.
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

class AllgatherKernel : public tensorflow::OpKernel {
 public:
  explicit AllgatherKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(CurrentEngine(&engine)));
    TensorView input;
    OP_REQUIRES_OK(context, ToTensorFlow(ToTensorView(context->input(0), &input)));
    const auto allocate = [context](const std::vector<int64_t>& shape, TensorView* view) {
      tensorflow::Tensor* output = nullptr;
      const absl::Status status =
          context->allocate_output(0, tensorflow::TensorShape(shape), &output);
      if (!status.ok()) return Status(StatusCode::kInternal, std::string(status.message()));
      return ToTensorView(*output, view);
    };
    OP_REQUIRES_OK(context, ToTensorFlow(engine->Allgather(label_, input, allocate)));
  }

 private:
  std::string label_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllgather").Device(tensorflow::DEVICE_CPU), AllgatherKernel);

}  // namespace
}  // namespace tfdist
