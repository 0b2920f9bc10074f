// The kernel of TfdistJoin, which on a GPU runs on the host too.
#include <memory>

#include "core/engine/world.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

class JoinKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(World::Find(0, &engine)));
    tensorflow::Tensor* last = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({}), &last));
    OP_REQUIRES_OK(context, ToTensorFlow(engine->Join(&last->scalar<int>()())));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistJoin").Device(tensorflow::DEVICE_CPU), JoinKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfdistJoin").Device(tensorflow::DEVICE_GPU).HostMemory("order").HostMemory("last"),
    JoinKernel);

}  // namespace
}  // namespace tfdist
