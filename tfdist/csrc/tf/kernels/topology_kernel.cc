// The kernel of TfdistTopology, whose value is in the host's memory on every device.
#include <memory>
#include <string>

#include "core/engine/world.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

class TopologyKernel : public tensorflow::OpKernel {
 public:
  explicit TopologyKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(World::Find(process_set_, &engine)));
    tensorflow::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({}), &value));
    value->scalar<int>()() = TopologyValue(engine->communicator().topology(), what_);
  }

 private:
  std::string what_;
  int process_set_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistTopology").Device(tensorflow::DEVICE_CPU), TopologyKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistTopology").Device(tensorflow::DEVICE_GPU).HostMemory("value"),
                        TopologyKernel);

}  // namespace
}  // namespace tfdist
