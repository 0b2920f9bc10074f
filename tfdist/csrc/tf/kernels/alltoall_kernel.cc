// The CPU kernel of TfdistAlltoall.
#include <algorithm>
#include <string>
#include <vector>

#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

class AlltoallKernel : public CollectiveKernel {
 public:
  explicit AlltoallKernel(tensorflow::OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("equal_splits", &equal_splits_));
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine) override {
    std::vector<TensorView> inputs;
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, 1, &inputs));
    // The shape function does not run in eager mode.
    const bool empty = context->input(1).NumElements() == 0;
    if (context->input(1).dims() != 1 || empty != equal_splits_) {
      return Status(StatusCode::kInvalidArgument,
                    "alltoall '" + label() + "' received splits of shape " +
                        context->input(1).shape().DebugString() +
                        "; expected one number of rows for each rank.");
    }
    const auto flat = context->input(1).vec<int64_t>();
    const std::vector<int64_t> splits(flat.data(), flat.data() + flat.size());
    TensorView counts;
    TFDIST_RETURN_IF_ERROR(AllocateOutput(context, 1, {engine->communicator().size()}, &counts));
    const auto allocate = [context](int index, const std::vector<int64_t>& shape,
                                    TensorView* view) {
      return AllocateOutput(context, index, shape, view);
    };
    std::vector<int64_t> received;
    TFDIST_RETURN_IF_ERROR(engine->Alltoall(label(), inputs[0], splits, allocate, &received));
    std::copy(received.begin(), received.end(), static_cast<int64_t*>(counts.data));
    return Status::Ok();
  }

 private:
  bool equal_splits_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfdistAlltoall").Device(tensorflow::DEVICE_CPU), AlltoallKernel);

}  // namespace
}  // namespace tfdist
