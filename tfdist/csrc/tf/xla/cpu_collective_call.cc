// The XLA kernels of the ops for the CPU, where scalars are operands: their calls are run by
// cpu_collective_handler.cc.
#include "tf/xla/collective_call.h"
#include "tf/xla/custom_call.h"
#include "tf/xla/registration.h"
#include "xla/shape_util.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;

class BarrierCall : public CollectiveCall {
 public:
  explicit BarrierCall(OpKernelConstruction* context) : CollectiveCall(context, kBarrierTarget) {}

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    return AddOrderedCall(context, {}, {}, attributes()).status();
  }
};

// No collective: it may run at any time.
class TopologyCall : public tensorflow::XlaOpKernel {
 public:
  explicit TopologyCall(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, CopyText(context, kWhat, &attributes_));
    OP_REQUIRES_OK(context, CopyNumber(context, kProcessSet, &attributes_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallSpec spec;
    spec.target = kTopologyTarget;
    spec.results = {xla::ShapeUtil::MakeShape(xla::S32, {})};
    spec.attributes = attributes_.text();
    const auto value = AddCall(context->builder(), spec);
    OP_REQUIRES_OK(context, value.status());
    context->SetOutput(0, value->front());
  }

 private:
  Attributes attributes_;
};

TFDIST_REGISTER("TfdistGroupedAllreduce", tensorflow::DEVICE_CPU_XLA_JIT, AllreduceCall);
TFDIST_REGISTER("TfdistStartAllreduce", tensorflow::DEVICE_CPU_XLA_JIT, AllreduceCall);
TFDIST_REGISTER("TfdistAwait", tensorflow::DEVICE_CPU_XLA_JIT, AwaitCall);
TFDIST_REGISTER("TfdistGroupedReducescatter", tensorflow::DEVICE_CPU_XLA_JIT, ReducescatterCall);
TFDIST_REGISTER("TfdistGroupedAllgather", tensorflow::DEVICE_CPU_XLA_JIT, AllgatherCall);
TFDIST_REGISTER("TfdistGroupedBroadcast", tensorflow::DEVICE_CPU_XLA_JIT, BroadcastCall);
TFDIST_REGISTER("TfdistBroadcastVariables", tensorflow::DEVICE_CPU_XLA_JIT, BroadcastVariablesCall);
TFDIST_REGISTER("TfdistBarrier", tensorflow::DEVICE_CPU_XLA_JIT, BarrierCall);
TFDIST_REGISTER("TfdistTopology", tensorflow::DEVICE_CPU_XLA_JIT, TopologyCall);

}  // namespace
}  // namespace tfdist
