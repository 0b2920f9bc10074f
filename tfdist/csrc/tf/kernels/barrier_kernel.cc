// The kernel of TfdistBarrier. On a GPU it also runs on the host: TensorFlow starts it when the
// collectives before it are done.
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/session_kernel.h"

namespace tfdist {
namespace {

template <typename Kernel>
class BarrierKernel : public Kernel {
 public:
  using Kernel::Kernel;

 protected:
  Status Run(tensorflow::OpKernelContext* /*context*/, Engine* engine, OnGpu* /*gpu*/) override {
    return engine->Barrier(this->label());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_CPU),
                        BarrierKernel<HostKernel>);
REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_GPU).HostMemory("order"),
                        BarrierKernel<HostKernel>);
TFDIST_REGISTER_IN_SESSION("TfdistBarrier", BarrierKernel);

}  // namespace
}  // namespace tfdist
