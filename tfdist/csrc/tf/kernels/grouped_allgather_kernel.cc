// The kernels of TfdistGroupedAllgather.
#include <algorithm>
#include <vector>

#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/session_kernel.h"

namespace tfdist {
namespace {

template <typename Kernel>
class GroupedAllgatherKernel : public Kernel {
 public:
  explicit GroupedAllgatherKernel(tensorflow::OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_names", &options_.tensor_names));
    options_.name = this->label();
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    const int tensors = context->num_outputs() - 1;
    std::vector<TensorView> inputs;
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &inputs));
    TensorView counts;
    TFDIST_RETURN_IF_ERROR(
        AllocateOutput(context, tensors, {tensors, engine->communicator().size()}, &counts));
    // The engine knows the rows when it asks for memory; on a GPU the op may end before it returns.
    std::vector<int64_t> rows;
    const auto allocate = [&](int index, const std::vector<int64_t>& shape, TensorView* view) {
      std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(counts.data));
      return AllocateOutput(context, index, shape, view);
    };
    return engine->Allgather(options_, inputs, allocate, &rows, gpu);
  }

 private:
  GatherOptions options_;
};

TFDIST_REGISTER_COLLECTIVE("TfdistGroupedAllgather", GroupedAllgatherKernel, .HostMemory("rows"));
TFDIST_REGISTER_IN_SESSION("TfdistGroupedAllgather", GroupedAllgatherKernel);

}  // namespace
}  // namespace tfdist
