// The CPU kernel of TfdistGroupedAllreduce.
#include <mutex>
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
    std::lock_guard<std::mutex> lock(calls_);
    const int tensors = context->num_outputs();
    int64_t weight = 0;
    TFDIST_RETURN_IF_ERROR(ReadScalar(*context, tensors, "prescale_factor", &options_.prescale));
    TFDIST_RETURN_IF_ERROR(
        ReadScalar(*context, tensors + 1, "postscale_factor", &options_.postscale));
    TFDIST_RETURN_IF_ERROR(ReadScalar(*context, tensors + 2, "weight", &weight));
    TFDIST_RETURN_IF_ERROR(ToWeight(label(), weight, &options_.weight));
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &inputs_));
    TFDIST_RETURN_IF_ERROR(results_.Give(context, tensors, &outputs_));
    return engine->Allreduce(options_, inputs_, outputs_);
  }

 private:
  // Calls take turns, as they do in the engine, and use the memory of the call before.
  std::mutex calls_;
  AllreduceOptions options_;
  std::vector<TensorView> inputs_;
  std::vector<TensorView> outputs_;
  ResultMemory results_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedAllreduce").Device(tensorflow::DEVICE_CPU),
                        GroupedAllreduceKernel);

}  // namespace
}  // namespace tfdist
