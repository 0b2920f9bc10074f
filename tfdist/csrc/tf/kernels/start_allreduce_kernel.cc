// The kernel of TfdistStartAllreduce, for both devices. It gives the collective its place among the
// others, and on a GPU marks what makes its inputs; then a thread of its own waits for the ranks,
// and on the CPU does the work.
#include <memory>
#include <utility>
#include <vector>

#include "core/agree/started_call.h"
#include "core/engine/world.h"
#include "core/value/calling_thread.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// All that a collective needs after its op has ended.
struct Work {
  std::shared_ptr<Engine> engine;
  AllreduceOptions options;
  std::vector<Tensor> memory;  // of inputs and outputs, until `place` has it
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  OnGpu place;
  bool on_gpu = false;
  std::shared_ptr<StartedCall> call;
};

void Run(const std::shared_ptr<Work>& work) {
  const OnGpu* const gpu = work->on_gpu ? &work->place : nullptr;
  const Status status = work->engine->Allreduce(work->options, work->inputs, work->outputs, gpu);
  // Whoever waits finds the tensors in nobody else's hands, and may be the last to need the engine.
  work->memory.clear();
  work->engine.reset();
  if (gpu == nullptr || !status.ok()) work->call->End(status);
}

class StartAllreduceKernel : public tensorflow::OpKernel {
 public:
  explicit StartAllreduceKernel(OpKernelConstruction* context)
      : OpKernel(context), on_gpu_(context->device_type() == tensorflow::DEVICE_GPU) {
    OP_REQUIRES_OK(context, ReadReduction(context, &options_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &options_.weighted));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  }

  void Compute(OpKernelContext* context) override {
    const auto work = std::make_shared<Work>();
    OP_REQUIRES_OK(context, ToTensorFlow(Read(context, work.get())));
    Tensor* number = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(context->num_outputs() - 1, {}, &number));
    work->call = StartedCall::New(&number->scalar<int64_t>()());
    if (on_gpu_) {
      // The engine's device holds it until then, so it must not hold the engine.
      work->place.done = [call = work->call, memory = std::move(work->memory)](
                             const Status& status) { call->End(status); };
      work->place.waited_ns = [call = work->call] { return call->waited_ns(); };
      work->engine->Announce(&work->place);
    } else {
      work->options.place = work->engine->Announce();
    }
    // The ranks compare what called it, which is on this thread.
    tensorflow::Env::Default()->SchedClosure([work, caller = CallingThread()] {
      const CallingThreadScope scope(caller);
      Run(work);
    });
  }

 private:
  Status Read(OpKernelContext* context, Work* work) const {
    const int tensors = context->num_outputs() - 1;
    work->on_gpu = on_gpu_;
    work->options = options_;
    TFDIST_RETURN_IF_ERROR(World::Find(process_set_, &work->engine));
    if (on_gpu_) TFDIST_RETURN_IF_ERROR(FindPlace(context, &work->place));
    TFDIST_RETURN_IF_ERROR(ReadFactors(*context, tensors, &work->options));
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, tensors, &work->inputs));
    work->outputs.resize(tensors);
    for (int i = 0; i < tensors; ++i) {
      TFDIST_RETURN_IF_ERROR(ForwardOrAllocate(context, i, &work->outputs[i]));
      work->memory.push_back(context->input(i));
      work->memory.push_back(*context->mutable_output(i));
    }
    return Status::Ok();
  }

  const bool on_gpu_;
  AllreduceOptions options_;
  int process_set_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistStartAllreduce").Device(tensorflow::DEVICE_CPU),
                        StartAllreduceKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistStartAllreduce")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("prescale")
                            .HostMemory("postscale")
                            .HostMemory("weight")
                            .HostMemory("order")
                            .HostMemory("call"),
                        StartAllreduceKernel);

}  // namespace
}  // namespace tfdist
