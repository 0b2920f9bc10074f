// The kernel of TfdistAwait, for both devices: no thread waits in it.
#include <memory>

#include "core/agree/started_call.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

class AwaitKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    const int tensors = context->num_outputs();
    int64_t number = 0;
    const Status read = ReadScalar(*context, tensors, "call", &number);
    OP_REQUIRES_OK_ASYNC(context, ToTensorFlow(read), done);
    const std::shared_ptr<StartedCall> call = StartedCall::Take(number);
    OP_REQUIRES_ASYNC(context, call != nullptr,
                      absl::InvalidArgumentError(
                          "call is " + std::to_string(number) +
                          "; expected the number that a TfdistStartAllreduce returned, once."),
                      done);
    for (int i = 0; i < tensors; ++i) context->set_output(i, context->input(i));
    call->WhenEnded([context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistAwait").Device(tensorflow::DEVICE_CPU), AwaitKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfdistAwait").Device(tensorflow::DEVICE_GPU).HostMemory("call").HostMemory("order"),
    AwaitKernel);

}  // namespace
}  // namespace tfdist
