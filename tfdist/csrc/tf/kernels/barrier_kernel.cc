// The CPU kernel of TfdistBarrier.
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

class BarrierKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Status Run(tensorflow::OpKernelContext* /*context*/, Engine* engine) override {
    return engine->Barrier(label());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);

}  // namespace
}  // namespace tfdist
