// The kernels of TfdistGroupedReducescatter.
#include <vector>

#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/session_kernel.h"

namespace tfdist {
namespace {

template <typename Kernel>
class GroupedReducescatterKernel : public Kernel {
 public:
  explicit GroupedReducescatterKernel(tensorflow::OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &options_));
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    const int tensors = context->num_outputs();
    AllreduceOptions options = options_;
    TFDIST_RETURN_IF_ERROR(ReadScalar(*context, tensors, "prescale_factor", &options.prescale));
    TFDIST_RETURN_IF_ERROR(
        ReadScalar(*context, tensors + 1, "postscale_factor", &options.postscale));
    std::vector<TensorView> inputs, outputs(tensors);
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &inputs));
    const Communicator& communicator = engine->communicator();
    for (int i = 0; i < tensors; ++i) {
      std::vector<int64_t> shape = inputs[i].shape;
      if (!shape.empty()) {  // the engine refuses a scalar, on every rank
        const RowRange own = OwnRows(shape[0], communicator.rank(), communicator.size());
        shape[0] = own.end - own.begin;
      }
      TFDIST_RETURN_IF_ERROR(AllocateOutput(context, i, shape, &outputs[i]));
    }
    return engine->ReduceScatter(options, inputs, outputs, gpu);
  }

 private:
  AllreduceOptions options_;
};

TFDIST_REGISTER_COLLECTIVE("TfdistGroupedReducescatter", GroupedReducescatterKernel,
                           .HostMemory("prescale").HostMemory("postscale"));
TFDIST_REGISTER_IN_SESSION("TfdistGroupedReducescatter", GroupedReducescatterKernel);

}  // namespace
}  // namespace tfdist
