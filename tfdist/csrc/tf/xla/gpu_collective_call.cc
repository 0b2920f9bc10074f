// The XLA kernels of the ops for GPUs: their calls are run by gpu_collective_handler.cc.
//
// A handler would have to wait for the GPU to read a scalar there. So scalars must be known when
// the function is compiled, and become attributes of the call; a factor that is known only later
// is multiplied with in XLA, around the call.
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/place/topology.h"
#include "tf/conversion.h"
#include "tf/xla/collective_call.h"
#include "tf/xla/custom_call.h"
#include "tf/xla/refused_call.h"
#include "tf/xla/registration.h"
#include "xla/primitive_util.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;
using xla::Shape;
using xla::XlaOp;

// What a reduction's tensors are multiplied with: `number` by the call, and `value`, where there is
// one, around it.
struct Factor {
  double number = 1.0;
  XlaOp value;
};

Factor FactorOf(XlaOpKernelContext* context, int input) {
  Factor factor;
  if (!context->ConstantInputAsFloatScalar(input, &factor.number).ok()) {
    factor = {1.0, context->Input(input)};
  }
  return factor;
}

// In the arithmetic of the engine: that of the dtype, but float32 for those of 16 bits.
absl::Status Multiply(xla::XlaBuilder* builder, const Factor& factor, std::vector<XlaOp>* tensors) {
  if (!factor.value.valid()) return absl::OkStatus();
  for (XlaOp& tensor : *tensors) {
    TF_ASSIGN_OR_RETURN(const Shape shape, builder->GetShape(tensor));
    const xla::PrimitiveType type = shape.element_type();
    if (!xla::primitive_util::IsFloatingPointType(type)) {
      return absl::InvalidArgumentError(
          "an allreduce or reducescatter inside jit_compile=True received a tensor of whole "
          "numbers "
          "and a prescale or postscale, which need a floating dtype. Leave both at 1, or cast the "
          "tensor to float32.");
    }
    const xla::PrimitiveType wide = type == xla::F64 ? xla::F64 : xla::F32;
    const XlaOp product = xla::Mul(xla::ConvertElementType(tensor, wide),
                                   xla::ConvertElementType(factor.value, wide));
    tensor = xla::ConvertElementType(product, type);
  }
  return absl::OkStatus();
}

absl::Status AddWeight(XlaOpKernelContext* context, int input, Attributes* attributes) {
  int64_t weight = 0;
  if (!context->ConstantInputAsIntScalar(input, &weight).ok()) {
    return absl::InvalidArgumentError(
        "the weight of an allreduce inside jit_compile=True on a GPU must be a constant; received "
        "one computed from data. The number of samples in a batch is a constant, from its shape. "
        "Remove jit_compile=True for other weights.");
  }
  attributes->Add(kWeight, weight);
  return absl::OkStatus();
}

// Its inputs are the tensors, prescale, postscale and for allreduce the weight.
template <typename Reduction>
class GpuReductionCall : public Reduction {
 public:
  using Reduction::Reduction;

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const int tensors = this->tensors();
    const Factor before = FactorOf(context, tensors);
    const Factor after = FactorOf(context, tensors + 1);
    Attributes attributes = this->attributes();
    attributes.Add(kPrescale, before.number);
    attributes.Add(kPostscale, after.number);
    if (std::is_same_v<Reduction, AllreduceCall>) {
      TF_RETURN_IF_ERROR(AddWeight(context, tensors + 2, &attributes));
    }
    std::vector<XlaOp> values = this->Operands(context);
    values.resize(tensors);
    TF_ASSIGN_OR_RETURN(std::vector<Shape> shapes,
                        this->ShapesOf(context->builder(), values, tensors));
    TF_ASSIGN_OR_RETURN(shapes, this->Reduced(std::move(shapes)));
    TF_RETURN_IF_ERROR(Multiply(context->builder(), before, &values));
    TF_ASSIGN_OR_RETURN(values, AddReduction(context, values, shapes, attributes, after));
    TF_RETURN_IF_ERROR(Multiply(context->builder(), after, &values));
    this->SetReduced(context, values);
    return absl::OkStatus();
  }

  virtual absl::StatusOr<std::vector<XlaOp>> AddReduction(XlaOpKernelContext* context,
                                                          const std::vector<XlaOp>& values,
                                                          const std::vector<Shape>& shapes,
                                                          const Attributes& attributes,
                                                          const Factor& /*after*/) {
    return this->AddOrderedCall(context, values, shapes, attributes);
  }
};

using GpuAllreduceCall = GpuReductionCall<AllreduceCall>;
using GpuReducescatterCall = GpuReductionCall<ReducescatterCall>;

// Started as early and awaited as late as XLA can. In between the tensors are in use by the
// engine's stream: in one memory from the one call to the other, which nothing else may touch.
class GpuStartAllreduceCall : public GpuAllreduceCall {
 public:
  using GpuAllreduceCall::GpuAllreduceCall;

 protected:
  absl::StatusOr<std::vector<XlaOp>> AddReduction(XlaOpKernelContext* context,
                                                  const std::vector<XlaOp>& values,
                                                  const std::vector<Shape>& shapes,
                                                  const Attributes& attributes,
                                                  const Factor& after) override {
    if (after.value.valid()) {  // multiplied with around the call, which is then done there
      return AddOrderedCall(context, values, shapes, attributes);
    }
    return AddOrderedCall(
        context, {kStartAllreduceTarget, values, shapes, attributes.text(),
                  static_cast<int>(values.size()) + 1, xla::CustomCallSchedule::SCHEDULE_EARLIEST});
  }
};

class GpuAwaitCall : public CollectiveCall {
 public:
  explicit GpuAwaitCall(OpKernelConstruction* context) : CollectiveCall(context, kAwaitTarget) {}

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const int tensors = context->num_outputs();
    std::vector<XlaOp> values = Operands(context);
    values.resize(tensors);  // without the number of the call
    TF_ASSIGN_OR_RETURN(const std::vector<Shape> shapes,
                        ShapesOf(context->builder(), values, tensors));
    TF_ASSIGN_OR_RETURN(
        const std::vector<XlaOp> results,
        AddOrderedCall(context, {kAwaitTarget, values, shapes, attributes().text(), tensors + 1,
                                 xla::CustomCallSchedule::SCHEDULE_LATEST}));
    SetOutputs(context, results);
    return absl::OkStatus();
  }
};

// The value while it is compiled: a new tf.function sees a later one.
class GpuTopologyCall : public tensorflow::XlaOpKernel {
 public:
  explicit GpuTopologyCall(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr(kWhat, &what_));
    OP_REQUIRES_OK(context, context->GetAttr(kProcessSet, &process_set_));
  }

  void Compile(XlaOpKernelContext* context) override {
    const auto topology = FindTopology(process_set_);
    OP_REQUIRES_OK(context, topology.status());
    tensorflow::Tensor value(tensorflow::DT_INT32, tensorflow::TensorShape({}));
    value.scalar<int32_t>()() = TopologyValue(*topology, what_);
    context->SetConstantOutput(0, value);
  }

 private:
  std::string what_;
  int64_t process_set_ = 0;
};

class GpuBarrierCall : public RefusedCall {
 public:
  explicit GpuBarrierCall(OpKernelConstruction* context)
      : RefusedCall(
            context,
            "on a GPU the ranks would meet before the GPU has finished the work before "
            "the barrier. Call tfdist.barrier outside the function with jit_compile=True.") {}
};

TFDIST_REGISTER("TfdistGroupedAllreduce", tensorflow::DEVICE_GPU_XLA_JIT, GpuAllreduceCall);
TFDIST_REGISTER("TfdistStartAllreduce", tensorflow::DEVICE_GPU_XLA_JIT, GpuStartAllreduceCall);
TFDIST_REGISTER("TfdistAwait", tensorflow::DEVICE_GPU_XLA_JIT, GpuAwaitCall);
TFDIST_REGISTER("TfdistGroupedReducescatter", tensorflow::DEVICE_GPU_XLA_JIT, GpuReducescatterCall);
TFDIST_REGISTER("TfdistGroupedAllgather", tensorflow::DEVICE_GPU_XLA_JIT, AllgatherCall);
TFDIST_REGISTER("TfdistGroupedBroadcast", tensorflow::DEVICE_GPU_XLA_JIT, BroadcastCall);
TFDIST_REGISTER("TfdistBroadcastVariables", tensorflow::DEVICE_GPU_XLA_JIT, BroadcastVariablesCall);
TFDIST_REGISTER("TfdistBarrier", tensorflow::DEVICE_GPU_XLA_JIT, GpuBarrierCall);
TFDIST_REGISTER("TfdistTopology", tensorflow::DEVICE_GPU_XLA_JIT, GpuTopologyCall);

}  // namespace
}  // namespace tfdist
