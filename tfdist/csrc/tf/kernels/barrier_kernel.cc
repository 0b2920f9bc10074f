// The kernel of TfdistBarrier. On a GPU it also runs on the host: TensorFlow starts it when the
// collectives before it are done.
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

class BarrierKernel : public HostKernel {
 public:
  using HostKernel::HostKernel;

 protected:
  Status Run(tensorflow::OpKernelContext* /*context*/, Engine* engine, OnGpu* /*gpu*/) override {
    return engine->Barrier(label());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_GPU).HostMemory("order"),
                        BarrierKernel);

}  // namespace
}  // namespace tfdist
