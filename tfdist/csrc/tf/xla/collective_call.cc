// The XLA kernels of the ops: each becomes a typed FFI custom call, run by collective_handler.cc.
//
// XLA keeps no order among calls that do not depend on each other, so each takes and returns a
// token. Between the calls it is the value of the variable behind the op's input `order`: a kernel
// reads it, hands it to its call, and assigns what the call returns. TensorFlow compiles the ops of
// a graph in the order of their control edges and carries variables through functions, conditionals
// and loops, so the calls are chained there as everywhere else.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fused_collective.h"
#include "core/world.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tf/conversion.h"
#include "tf/xla/custom_call.h"
#include "tf/xla/refused_call.h"
#include "tf/xla/registration.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;
using xla::Shape;
using xla::XlaOp;

constexpr tensorflow::DataType kTokenType = tensorflow::DT_INT32;

// The attributes of a call, as text that XLA parses.
class Attributes {
 public:
  void Add(const std::string& name, int64_t value) {
    AddText(name, std::to_string(value) + " : i64");
  }
  void Add(const std::string& name, const std::string& value) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    std::string quoted = "\"";
    for (const unsigned char c : value) {
      if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        quoted += static_cast<char>(c);
      } else {
        quoted += {'\\', kDigits[c >> 4], kDigits[c & 15]};
      }
    }
    AddText(name, quoted + "\"");
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void AddText(const std::string& name, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + name + " = " + value;
  }

  std::string text_;
};

absl::Status CopyText(OpKernelConstruction* context, const char* name, Attributes* attributes) {
  std::string value;
  TF_RETURN_IF_ERROR(context->GetAttr(name, &value));
  attributes->Add(name, value);
  return absl::OkStatus();
}

absl::Status CopyNumber(OpKernelConstruction* context, const char* name, Attributes* attributes) {
  int64_t value = 0;
  TF_RETURN_IF_ERROR(context->GetAttr(name, &value));
  attributes->Add(name, value);
  return absl::OkStatus();
}

absl::Status CopyFlag(OpKernelConstruction* context, const char* name, Attributes* attributes) {
  bool value = false;
  TF_RETURN_IF_ERROR(context->GetAttr(name, &value));
  attributes->Add(name, static_cast<int64_t>(value));
  return absl::OkStatus();
}

absl::Status CopyTensorNames(OpKernelConstruction* context, Attributes* attributes) {
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(context->GetAttr(kTensorNames, &names));
  std::string joined;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) joined += kSeparator;
    for (const char c : names[i]) joined += c == kSeparator ? '?' : c;
  }
  attributes->Add(kTensorNames, joined);
  return absl::OkStatus();
}

// Adds a call with row-major operands and results.
absl::StatusOr<std::vector<XlaOp>> AddCall(xla::XlaBuilder* builder, const char* target,
                                           const std::vector<XlaOp>& operands,
                                           const std::vector<Shape>& results,
                                           const Attributes& attributes) {
  std::vector<Shape> operand_shapes;
  for (const XlaOp operand : operands) {
    TF_ASSIGN_OR_RETURN(Shape shape, builder->GetShape(operand));
    if (shape.is_dynamic()) {
      return absl::InvalidArgumentError(
          "a collective inside jit_compile=True received a tensor whose shape is known only when "
          "it runs. Run the collective outside of the compiled function.");
    }
    operand_shapes.push_back(std::move(shape));
  }
  for (Shape& shape : operand_shapes) xla::LayoutUtil::SetToDefaultLayout(&shape);
  Shape result = xla::ShapeUtil::MakeTupleShape(results);
  xla::LayoutUtil::SetToDefaultLayout(&result);
  const XlaOp call = xla::CustomCallWithLayout(
      builder, target, operands, result, operand_shapes, attributes.text(),
      /*has_side_effect=*/true, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<XlaOp> parts;
  for (size_t i = 0; i < results.size(); ++i) {
    parts.push_back(xla::GetTupleElement(call, static_cast<int64_t>(i)));
  }
  return parts;
}

// What the kernels of all collectives have in common. The last input is `order`.
class CollectiveCall : public tensorflow::XlaOpKernel {
 public:
  CollectiveCall(OpKernelConstruction* context, const char* target)
      : XlaOpKernel(context), target_(target) {
    OP_REQUIRES_OK(context, context->GetAttr(kProcessSet, &process_set_));
    attributes_.Add(kProcessSet, process_set_);
    OP_REQUIRES_OK(context, CopyText(context, kLabel, &attributes_));
  }

  void Compile(XlaOpKernelContext* context) final {
    OP_REQUIRES_OK(context, CompileOrFail(context));
  }

 protected:
  virtual absl::Status CompileOrFail(XlaOpKernelContext* context) = 0;

  Attributes& attributes() { return attributes_; }

  // The ranks that take part, and which of them this is, while it is compiled.
  absl::StatusOr<const Topology> FindTopology() const {
    std::shared_ptr<Engine> engine;
    TF_RETURN_IF_ERROR(ToTensorFlow(World::Find(process_set_, &engine)));
    return engine->communicator().topology();
  }

  // Adds the call after all earlier ones. `results` are the shapes of what it returns.
  absl::StatusOr<std::vector<XlaOp>> AddOrderedCall(XlaOpKernelContext* context,
                                                    std::vector<XlaOp> operands,
                                                    std::vector<Shape> results) const {
    const int order = context->num_inputs() - 1;
    XlaOp token;
    TF_RETURN_IF_ERROR(context->ReadVariableInput(order, kTokenType, nullptr, &token));
    operands.push_back(token);
    TF_ASSIGN_OR_RETURN(const Shape token_shape, context->builder()->GetShape(token));
    results.push_back(token_shape);
    TF_ASSIGN_OR_RETURN(std::vector<XlaOp> parts,
                        AddCall(context->builder(), target_, operands, results, attributes_));
    TF_RETURN_IF_ERROR(context->AssignVariable(order, kTokenType, parts.back()));
    parts.pop_back();
    return parts;
  }

  // All inputs but `order`.
  static std::vector<XlaOp> Operands(XlaOpKernelContext* context) {
    std::vector<XlaOp> operands;
    for (int i = 0; i + 1 < context->num_inputs(); ++i) operands.push_back(context->Input(i));
    return operands;
  }

  static absl::StatusOr<std::vector<Shape>> ShapesOf(xla::XlaBuilder* builder,
                                                     const std::vector<XlaOp>& values, int count) {
    std::vector<Shape> shapes;
    for (int i = 0; i < count; ++i) {
      TF_ASSIGN_OR_RETURN(Shape shape, builder->GetShape(values[i]));
      shapes.push_back(std::move(shape));
    }
    return shapes;
  }

  static void SetOutputs(XlaOpKernelContext* context, const std::vector<XlaOp>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      context->SetOutput(static_cast<int>(i), values[i]);
    }
  }

 private:
  const char* const target_;
  int64_t process_set_ = 0;
  Attributes attributes_;
};

// A collective whose results have the shapes of its inputs.
class SameShapeCall : public CollectiveCall {
 public:
  using CollectiveCall::CollectiveCall;

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const std::vector<XlaOp> operands = Operands(context);
    TF_ASSIGN_OR_RETURN(const std::vector<Shape> shapes,
                        ShapesOf(context->builder(), operands, context->num_outputs()));
    TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> results,
                        AddOrderedCall(context, operands, shapes));
    SetOutputs(context, results);
    return absl::OkStatus();
  }
};

class AllreduceCall : public SameShapeCall {
 public:
  explicit AllreduceCall(OpKernelConstruction* context) : SameShapeCall(context, kAllreduceTarget) {
    OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
    OP_REQUIRES_OK(context, CopyText(context, kReduction, &attributes()));
    OP_REQUIRES_OK(context, CopyText(context, kCompression, &attributes()));
    OP_REQUIRES_OK(context, CopyFlag(context, kWeighted, &attributes()));
  }
};

class ReducescatterCall : public CollectiveCall {
 public:
  explicit ReducescatterCall(OpKernelConstruction* context)
      : CollectiveCall(context, kReducescatterTarget) {
    OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
    OP_REQUIRES_OK(context, CopyText(context, kReduction, &attributes()));
    OP_REQUIRES_OK(context, CopyText(context, kCompression, &attributes()));
  }

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const std::vector<XlaOp> operands = Operands(context);
    TF_ASSIGN_OR_RETURN(std::vector<Shape> shapes,
                        ShapesOf(context->builder(), operands, context->num_outputs()));
    TF_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
    for (Shape& shape : shapes) {
      const RowRange own = OwnRows(shape.dimensions(0), topology.rank, topology.size);
      shape.set_dimensions(0, own.end - own.begin);
    }
    TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> scattered,
                        AddOrderedCall(context, operands, shapes));
    SetOutputs(context, scattered);
    return absl::OkStatus();
  }
};

// Every rank gives as many rows as this one: the handler sees to it.
class AllgatherCall : public CollectiveCall {
 public:
  explicit AllgatherCall(OpKernelConstruction* context)
      : CollectiveCall(context, kAllgatherTarget) {
    OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
  }

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const std::vector<XlaOp> operands = Operands(context);
    const int tensors = static_cast<int>(operands.size());
    TF_ASSIGN_OR_RETURN(std::vector<Shape> shapes, ShapesOf(context->builder(), operands, tensors));
    TF_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
    tensorflow::Tensor rows(tensorflow::DT_INT64, {tensors, topology.size});
    for (int i = 0; i < tensors; ++i) {
      const bool scalar = shapes[i].dimensions().empty();
      const int64_t own = scalar ? 1 : shapes[i].dimensions(0);
      for (int r = 0; r < topology.size; ++r) rows.matrix<int64_t>()(i, r) = own;
      if (scalar) {
        shapes[i] = xla::ShapeUtil::MakeShape(shapes[i].element_type(), {topology.size});
      } else {
        shapes[i].set_dimensions(0, own * topology.size);
      }
    }
    TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> gathered,
                        AddOrderedCall(context, operands, shapes));
    SetOutputs(context, gathered);
    context->SetConstantOutput(tensors, rows);
    return absl::OkStatus();
  }
};

class BroadcastCall : public SameShapeCall {
 public:
  explicit BroadcastCall(OpKernelConstruction* context) : SameShapeCall(context, kBroadcastTarget) {
    OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
    OP_REQUIRES_OK(context, CopyNumber(context, kRootRank, &attributes()));
  }
};

class BroadcastVariablesCall : public CollectiveCall {
 public:
  explicit BroadcastVariablesCall(OpKernelConstruction* context)
      : CollectiveCall(context, kBroadcastTarget) {
    OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
    OP_REQUIRES_OK(context, CopyNumber(context, kRootRank, &attributes()));
  }

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    const int count = context->num_inputs() - 1;
    std::vector<tensorflow::DataType> types(count);
    std::vector<XlaOp> values(count);
    for (int i = 0; i < count; ++i) {
      tensorflow::TensorShape shape;
      TF_RETURN_IF_ERROR(context->GetVariableTypeAndShape(i, &types[i], &shape));
      TF_RETURN_IF_ERROR(context->ReadVariableInput(i, types[i], nullptr, &values[i]));
    }
    TF_ASSIGN_OR_RETURN(const std::vector<Shape> shapes,
                        ShapesOf(context->builder(), values, count));
    TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> received, AddOrderedCall(context, values, shapes));
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(context->AssignVariable(i, types[i], received[i]));
    }
    return absl::OkStatus();
  }
};

class BarrierCall : public CollectiveCall {
 public:
  explicit BarrierCall(OpKernelConstruction* context) : CollectiveCall(context, kBarrierTarget) {}

 protected:
  absl::Status CompileOrFail(XlaOpKernelContext* context) override {
    return AddOrderedCall(context, {}, {}).status();
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
    const auto value = AddCall(context->builder(), kTopologyTarget, {},
                               {xla::ShapeUtil::MakeShape(xla::S32, {})}, attributes_);
    OP_REQUIRES_OK(context, value.status());
    context->SetOutput(0, value->front());
  }

 private:
  Attributes attributes_;
};

class AlltoallCall : public RefusedCall {
 public:
  explicit AlltoallCall(OpKernelConstruction* context)
      : RefusedCall(context,
                    "the number of rows that alltoall returns is known only when it runs. Call "
                    "tfdist.alltoall outside of the function with jit_compile=True.") {}
};

class JoinCall : public RefusedCall {
 public:
  explicit JoinCall(OpKernelConstruction* context)
      : RefusedCall(context,
                    "join runs what the other ranks submit. Call tfdist.join outside of the "
                    "function with jit_compile=True.") {}
};

// What has no handler on the platform.
class GpuCall : public RefusedCall {
 public:
  explicit GpuCall(OpKernelConstruction* context)
      : RefusedCall(context,
                    "tfdist's collectives are compiled for the CPU only, so far. Leave out "
                    "jit_compile=True, or run the function under tf.device(\"CPU\").") {}
};

TFDIST_REGISTER_ALL(tensorflow::DEVICE_GPU_XLA_JIT, GpuCall);

TFDIST_REGISTER("TfdistGroupedAllreduce", tensorflow::DEVICE_CPU_XLA_JIT, AllreduceCall);
TFDIST_REGISTER("TfdistGroupedReducescatter", tensorflow::DEVICE_CPU_XLA_JIT, ReducescatterCall);
TFDIST_REGISTER("TfdistGroupedAllgather", tensorflow::DEVICE_CPU_XLA_JIT, AllgatherCall);
TFDIST_REGISTER("TfdistGroupedBroadcast", tensorflow::DEVICE_CPU_XLA_JIT, BroadcastCall);
TFDIST_REGISTER("TfdistBroadcastVariables", tensorflow::DEVICE_CPU_XLA_JIT, BroadcastVariablesCall);
TFDIST_REGISTER("TfdistBarrier", tensorflow::DEVICE_CPU_XLA_JIT, BarrierCall);
TFDIST_REGISTER("TfdistTopology", tensorflow::DEVICE_CPU_XLA_JIT, TopologyCall);
TFDIST_REGISTER("TfdistAlltoall", tensorflow::DEVICE_CPU_XLA_JIT, AlltoallCall);
TFDIST_REGISTER("TfdistJoin", tensorflow::DEVICE_CPU_XLA_JIT, JoinCall);

}  // namespace
}  // namespace tfdist
