// The CPU kernel of TfdistGroupedAllreduce.
#include <vector>

#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/result_memory.h"

namespace tfdist {
namespace {

class GroupedAllreduceKernel : public CollectiveKernel {
 public:
  explicit GroupedAllreduceKernel(tensorflow::OpKernelConstruction* context)
      : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &options_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &options_.weighted));
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine) override {
    const int tensors = context->num_outputs();
    AllreduceOptions options = options_;
    int64_t weight = 0;
    TFDIST_RETURN_IF_ERROR(ReadScalar(*context, tensors, "prescale_factor", &options.prescale));
    TFDIST_RETURN_IF_ERROR(
        ReadScalar(*context, tensors + 1, "postscale_factor", &options.postscale));
    TFDIST_RETURN_IF_ERROR(ReadScalar(*context, tensors + 2, "weight", &weight));
    TFDIST_RETURN_IF_ERROR(ToWeight(label(), weight, &options.weight));
    std::vector<TensorView> inputs, outputs(tensors);
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &inputs));
    for (int i = 0; i < tensors; ++i) {
      TFDIST_RETURN_IF_ERROR(results_.Give(context, i, &outputs[i]));
    }
    return engine->Allreduce(options, inputs, outputs);
  }

 private:
  AllreduceOptions options_;
  ResultMemory results_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedAllreduce").Device(tensorflow::DEVICE_CPU),
                        GroupedAllreduceKernel);

}  // namespace
}  // namespace tfdist
