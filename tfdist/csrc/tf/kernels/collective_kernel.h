// What the kernels of all collectives have in common: attributes, the engine, memory for results.
// Registers nothing and runs no collective. A kernel is a class template over one of the bases here
// or in session_kernel.h, and so has one Run for all of them.
#ifndef TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_
#define TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_

#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// What the bases of all kernels have: OpKernel or AsyncOpKernel with the attributes that all
// collectives have.
template <typename Base>
class CollectiveKernel : public Base {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context) : Base(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  }

 protected:
  // `gpu` is null where the tensors are in the host's memory.
  virtual Status Run(tensorflow::OpKernelContext* context, Engine* engine, OnGpu* gpu) = 0;

  const std::string& label() const { return label_; }
  int process_set() const { return process_set_; }

 private:
  std::string label_;
  int process_set_ = 0;
};

// On the CPU: runs the collective on the thread that TensorFlow gives.
class HostKernel : public CollectiveKernel<tensorflow::OpKernel> {
 public:
  using CollectiveKernel::CollectiveKernel;

  // Finds the engine of the process set and hands over to Run; an error of Run becomes the op's.
  void Compute(tensorflow::OpKernelContext* context) final;
};

// On a GPU: waits for the other ranks on a thread of its own, since TensorFlow's are needed for the
// rest of the step, and is done when the results are there. No stream of TensorFlow waits. Run may
// put more before gpu->done, which ends the op.
class GpuKernel : public CollectiveKernel<tensorflow::AsyncOpKernel> {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;
};

// Registers the class template `kernel` for an op on both devices. What follows are the arguments
// that a GPU's kernel takes in the host's memory: .HostMemory("order")...
#define TFDIST_REGISTER_COLLECTIVE(op, kernel, host_memory)                                        \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), kernel<HostKernel>);            \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_GPU) host_memory.HostMemory("order"), \
                          kernel<GpuKernel>)

// Views of the inputs from 0 to `count` - 1.
Status ViewInputs(const tensorflow::OpKernelContext& context, int count,
                  std::vector<TensorView>* views);

// Reads a scalar input; an error names it by `what`. Shape functions do not run in eager mode.
template <typename T>
Status ReadScalar(const tensorflow::OpKernelContext& context, int index, const std::string& what,
                  T* value) {
  const tensorflow::Tensor& input = context.input(index);
  if (input.dims() != 0) {
    return Status(StatusCode::kInvalidArgument,
                  what + " has shape " + input.shape().DebugString() + "; expected a scalar.");
  }
  *value = input.scalar<T>()();
  return Status::Ok();
}

// Allocates output `index`.
Status AllocateOutput(tensorflow::OpKernelContext* context, int index,
                      const std::vector<int64_t>& shape, TensorView* view);

// Gives input `index`'s memory to output `index` where nobody else reads it; else allocates.
Status ForwardOrAllocate(tensorflow::OpKernelContext* context, int index, TensorView* view);

// The GPU and the stream that the inputs of `context` are made in.
Status FindPlace(tensorflow::OpKernelContext* context, OnGpu* gpu);

// The inputs prescale, postscale and weight of an allreduce, from `first` on.
Status ReadFactors(const tensorflow::OpKernelContext& context, int first,
                   AllreduceOptions* options);

// Attributes of reductions.
absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, AllreduceOptions* options);

}  // namespace tfdist

#endif  // TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_
