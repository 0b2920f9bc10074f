// The CPU kernel of TfdistGroupedAllgather.
#include <algorithm>
#include <vector>

#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

class GroupedAllgatherKernel : public CollectiveKernel {
 public:
  explicit GroupedAllgatherKernel(tensorflow::OpKernelConstruction* context)
      : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_names", &options_.tensor_names));
    options_.name = label();
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine) override {
    const int tensors = context->num_outputs() - 1;
    std::vector<TensorView> inputs;
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &inputs));
    TensorView counts;
    TFDIST_RETURN_IF_ERROR(
        AllocateOutput(context, tensors, {tensors, engine->communicator().size()}, &counts));
    const auto allocate = [context](int index, const std::vector<int64_t>& shape,
                                    TensorView* view) {
      return AllocateOutput(context, index, shape, view);
    };
    std::vector<int64_t> rows;
    TFDIST_RETURN_IF_ERROR(engine->Allgather(options_, inputs, allocate, &rows));
    std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(counts.data));
    return Status::Ok();
  }

 private:
  GatherOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedAllgather").Device(tensorflow::DEVICE_CPU),
                        GroupedAllgatherKernel);

}  // namespace
}  // namespace tfdist
