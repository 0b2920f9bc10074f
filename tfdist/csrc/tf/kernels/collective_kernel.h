// What the kernels of all collectives have in common: attributes, the engine, memory for results.
// Registers nothing and runs no collective.
#ifndef TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_
#define TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_

#include <string>
#include <vector>

#include "core/engine.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

class CollectiveKernel : public tensorflow::OpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context);

  // Finds the engine of the process set and hands over to Run; an error of Run becomes the op's.
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  virtual Status Run(tensorflow::OpKernelContext* context, Engine* engine) = 0;

  const std::string& label() const { return label_; }

 private:
  std::string label_;
  int process_set_ = 0;
};

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

// Attributes of reductions.
absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, AllreduceOptions* options);

}  // namespace tfdist

#endif  // TFDIST_TF_KERNELS_COLLECTIVE_KERNEL_H_
