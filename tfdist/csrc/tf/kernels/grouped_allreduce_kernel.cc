// The kernels of TfdistGroupedAllreduce.
#include <memory>
#include <mutex>
#include <vector>

#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/result_memory.h"
#include "tf/kernels/session_kernel.h"

namespace tfdist {
namespace {

template <typename Kernel>
class GroupedAllreduceKernel : public Kernel {
 public:
  explicit GroupedAllreduceKernel(tensorflow::OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &state_->options));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &state_->options.weighted));
  }

 protected:
  Status Run(tensorflow::OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    const std::shared_ptr<State> state = state_;
    std::lock_guard<std::mutex> lock(state->calls);
    AllreduceOptions& options = state->options;
    const int tensors = context->num_outputs();
    TFDIST_RETURN_IF_ERROR(ReadFactors(*context, tensors, &options));
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &state->inputs));
    TFDIST_RETURN_IF_ERROR(state->results.Give(context, tensors, &state->outputs));
    return engine->Allreduce(options, state->inputs, state->outputs, gpu);
  }

 private:
  // Calls take turns, as they do in the engine, and use the memory of the call before. On a GPU the
  // op, and with it the kernel, may end before its last call returns: so it is held by that too.
  struct State {
    std::mutex calls;
    AllreduceOptions options;
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    ResultMemory results;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TFDIST_REGISTER_COLLECTIVE("TfdistGroupedAllreduce", GroupedAllreduceKernel,
                           .HostMemory("prescale").HostMemory("postscale").HostMemory("weight"));
TFDIST_REGISTER_IN_SESSION("TfdistGroupedAllreduce", GroupedAllreduceKernel);

}  // namespace
}  // namespace tfdist
