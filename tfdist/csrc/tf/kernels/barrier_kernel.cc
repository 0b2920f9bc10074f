// The CPU kernel of TfdistBarrier.
#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

class BarrierKernel : public tensorflow::OpKernel {
 public:
  explicit BarrierKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(CurrentEngine(&engine)));
    OP_REQUIRES_OK(context, ToTensorFlow(engine->Barrier(label_)));
  }

 private:
  std::string label_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);

}  // namespace
}  // namespace tfdist
