// The third base of a collective's kernel, beside HostKernel and GpuKernel: for graphs that a
// session runs. Its executor chooses an order of its own on each rank, and may have one thread: so
// the op announces its collective, and is done when the ranks have run it.
//
// TensorFlow chooses this kernel for an op with the attribute _kernel="session". Tensors are in the
// host's memory, on machines with GPUs too.
#ifndef TFDIST_TF_KERNELS_SESSION_KERNEL_H_
#define TFDIST_TF_KERNELS_SESSION_KERNEL_H_

#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/kernels/collective_kernel.h"

namespace tfdist {

class SessionKernel : public CollectiveKernel<tensorflow::AsyncOpKernel> {
 public:
  explicit SessionKernel(tensorflow::OpKernelConstruction* context);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 private:
  std::string key_;
};

#define TFDIST_REGISTER_IN_SESSION(op, kernel)                                      \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU).Label("session"), \
                          kernel<SessionKernel>)

}  // namespace tfdist

#endif  // TFDIST_TF_KERNELS_SESSION_KERNEL_H_
