// The kernels of TfdistAlltoall.
#include <algorithm>
#include <string>
#include <vector>

#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/session_kernel.h"

namespace tfdist {
namespace {

template <typename Kernel>
class AlltoallKernel : public Kernel {
 public:
  explicit AlltoallKernel(tensorflow::OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("equal_splits", &equal_splits_));
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    std::vector<TensorView> inputs;
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, 1, &inputs));
    // The shape function does not run in eager mode.
    const bool empty = context->input(1).NumElements() == 0;
    if (context->input(1).dims() != 1 || empty != equal_splits_) {
      return Status(StatusCode::kInvalidArgument,
                    "alltoall '" + this->label() + "' received splits of shape " +
                        context->input(1).shape().DebugString() +
                        "; expected one number of rows for each rank.");
    }
    const auto flat = context->input(1).vec<int64_t>();
    const std::vector<int64_t> splits(flat.data(), flat.data() + flat.size());
    TensorView counts;
    TFDIST_RETURN_IF_ERROR(AllocateOutput(context, 1, {engine->communicator().size()}, &counts));
    // As in allgather: the engine knows the numbers when it asks for memory.
    std::vector<int64_t> received;
    const auto allocate = [&](int index, const std::vector<int64_t>& shape, TensorView* view) {
      std::copy(received.begin(), received.end(), static_cast<int64_t*>(counts.data));
      return AllocateOutput(context, index, shape, view);
    };
    return engine->Alltoall(this->label(), inputs[0], splits, allocate, &received, gpu);
  }

 private:
  bool equal_splits_ = false;
};

TFDIST_REGISTER_COLLECTIVE("TfdistAlltoall", AlltoallKernel,
                           .HostMemory("splits").HostMemory("received_splits"));
TFDIST_REGISTER_IN_SESSION("TfdistAlltoall", AlltoallKernel);

}  // namespace
}  // namespace tfdist
