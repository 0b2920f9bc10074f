#include "tf/xla/collective_call.h"

#include <cstring>
#include <memory>
#include <utility>

#include "core/algorithm/fused_collective.h"
#include "core/engine/world.h"
#include "tf/conversion.h"
#include "tf/xla/custom_call.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;
using xla::Shape;
using xla::XlaOp;

constexpr char kDigits[] = "0123456789ABCDEF";
// GPUs have no kernels that assign variables of fewer bits.
constexpr tensorflow::DataType kTokenType = tensorflow::DT_INT64;

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

}  // namespace

void Attributes::Add(const std::string& name, int64_t value) {
  AddText(name, std::to_string(value) + " : i64");
}

void Attributes::Add(const std::string& name, double value) {
  // Its bits, which any value has, and no locale changes.
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  std::string number = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) number += kDigits[(bits >> shift) & 15];
  AddText(name, number + " : f64");
}

void Attributes::Add(const std::string& name, const std::string& value) {
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

void Attributes::AddText(const std::string& name, const std::string& value) {
  text_ += (text_.empty() ? "" : ", ") + name + " = " + value;
}

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

absl::StatusOr<std::vector<XlaOp>> AddCall(xla::XlaBuilder* builder, const CallSpec& spec) {
  std::vector<Shape> operand_shapes;
  for (const XlaOp operand : spec.operands) {
    TF_ASSIGN_OR_RETURN(Shape shape, builder->GetShape(operand));
    if (shape.is_dynamic()) {
      return absl::InvalidArgumentError(
          "a collective inside jit_compile=True received a tensor whose shape is known only at "
          "run time. Run the collective outside the compiled function.");
    }
    operand_shapes.push_back(std::move(shape));
  }
  for (Shape& shape : operand_shapes) xla::LayoutUtil::SetToDefaultLayout(&shape);
  Shape result = xla::ShapeUtil::MakeTupleShape(spec.results);
  xla::LayoutUtil::SetToDefaultLayout(&result);
  const auto results = static_cast<int64_t>(spec.results.size());
  const auto operands = static_cast<int64_t>(spec.operands.size());
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> aliases;
  for (int64_t i = spec.in_place; i > 0; --i)
    aliases.push_back({{results - i}, {operands - i, {}}});
  const XlaOp call = xla::CustomCallWithLayout(
      builder, spec.target, spec.operands, result, operand_shapes, spec.attributes,
      /*has_side_effect=*/true, aliases, /*literal=*/nullptr, spec.schedule,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<XlaOp> parts;
  for (int64_t i = 0; i < results; ++i) parts.push_back(xla::GetTupleElement(call, i));
  return parts;
}

absl::StatusOr<const Topology> FindTopology(int64_t process_set) {
  std::shared_ptr<Engine> engine;
  TF_RETURN_IF_ERROR(ToTensorFlow(World::Find(static_cast<int>(process_set), &engine)));
  return engine->communicator().topology();
}

CollectiveCall::CollectiveCall(OpKernelConstruction* context, const char* target)
    : XlaOpKernel(context),
      target_(target),
      on_gpu_(context->device_type() == tensorflow::DEVICE_GPU_XLA_JIT) {
  OP_REQUIRES_OK(context, context->GetAttr(kProcessSet, &process_set_));
  attributes_.Add(kProcessSet, process_set_);
  OP_REQUIRES_OK(context, CopyText(context, kLabel, &attributes_));
}

void CollectiveCall::Compile(XlaOpKernelContext* context) {
  OP_REQUIRES_OK(context, CompileOrFail(context));
}

absl::StatusOr<std::vector<XlaOp>> CollectiveCall::AddOrderedCall(
    XlaOpKernelContext* context, std::vector<XlaOp> operands, std::vector<Shape> results,
    const Attributes& attributes) const {
  const int in_place = on_gpu_ ? 1 : 0;  // the token
  return AddOrderedCall(
      context, {target_, std::move(operands), std::move(results), attributes.text(), in_place});
}

absl::StatusOr<std::vector<XlaOp>> CollectiveCall::AddOrderedCall(XlaOpKernelContext* context,
                                                                  CallSpec spec) {
  const int order = context->num_inputs() - 1;
  XlaOp token;
  TF_RETURN_IF_ERROR(context->ReadVariableInput(order, kTokenType, nullptr, &token));
  spec.operands.push_back(token);
  TF_ASSIGN_OR_RETURN(const Shape token_shape, context->builder()->GetShape(token));
  spec.results.push_back(token_shape);
  TF_ASSIGN_OR_RETURN(std::vector<XlaOp> parts, AddCall(context->builder(), spec));
  TF_RETURN_IF_ERROR(context->AssignVariable(order, kTokenType, parts.back()));
  parts.pop_back();
  return parts;
}

std::vector<XlaOp> CollectiveCall::Operands(XlaOpKernelContext* context) {
  std::vector<XlaOp> operands;
  for (int i = 0; i + 1 < context->num_inputs(); ++i) operands.push_back(context->Input(i));
  return operands;
}

absl::StatusOr<std::vector<Shape>> CollectiveCall::ShapesOf(xla::XlaBuilder* builder,
                                                            const std::vector<XlaOp>& values,
                                                            int count) {
  std::vector<Shape> shapes;
  for (int i = 0; i < count; ++i) {
    TF_ASSIGN_OR_RETURN(Shape shape, builder->GetShape(values[i]));
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

void CollectiveCall::SetOutputs(XlaOpKernelContext* context, const std::vector<XlaOp>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    context->SetOutput(static_cast<int>(i), values[i]);
  }
}

ReductionCall::ReductionCall(OpKernelConstruction* context, const char* target)
    : CollectiveCall(context, target) {
  OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
  OP_REQUIRES_OK(context, CopyText(context, kReduction, &attributes()));
  OP_REQUIRES_OK(context, CopyText(context, kCompression, &attributes()));
  std::vector<tensorflow::DataType> dtypes;
  OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes));
  tensors_ = static_cast<int>(dtypes.size());
}

absl::Status ReductionCall::CompileOrFail(XlaOpKernelContext* context) {
  const std::vector<XlaOp> operands = Operands(context);
  TF_ASSIGN_OR_RETURN(std::vector<Shape> shapes, ShapesOf(context->builder(), operands, tensors_));
  TF_ASSIGN_OR_RETURN(shapes, Reduced(std::move(shapes)));
  TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> results,
                      AddOrderedCall(context, operands, shapes, attributes()));
  SetReduced(context, results);
  return absl::OkStatus();
}

void ReductionCall::SetReduced(XlaOpKernelContext* context, const std::vector<XlaOp>& results) {
  SetOutputs(context, results);
  if (context->num_outputs() > tensors_) {
    tensorflow::Tensor number(tensorflow::DT_INT64, {});
    number.scalar<int64_t>()() = 0;
    context->SetConstantOutput(tensors_, number);
  }
}

absl::StatusOr<std::vector<Shape>> ReductionCall::Reduced(std::vector<Shape> shapes) const {
  return shapes;
}

AllreduceCall::AllreduceCall(OpKernelConstruction* context)
    : ReductionCall(context, kAllreduceTarget) {
  OP_REQUIRES_OK(context, CopyFlag(context, kWeighted, &attributes()));
}

void AwaitCall::Compile(XlaOpKernelContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, context->Input(i));
}

ReducescatterCall::ReducescatterCall(OpKernelConstruction* context)
    : ReductionCall(context, kReducescatterTarget) {}

absl::StatusOr<std::vector<Shape>> ReducescatterCall::Reduced(std::vector<Shape> shapes) const {
  TF_ASSIGN_OR_RETURN(const Topology topology, FindTopology(process_set()));
  for (Shape& shape : shapes) {
    const RowRange own = OwnRows(shape.dimensions(0), topology.rank, topology.size);
    shape.set_dimensions(0, own.end - own.begin);
  }
  return shapes;
}

AllgatherCall::AllgatherCall(OpKernelConstruction* context)
    : CollectiveCall(context, kAllgatherTarget) {
  OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
}

absl::Status AllgatherCall::CompileOrFail(XlaOpKernelContext* context) {
  const std::vector<XlaOp> operands = Operands(context);
  const int tensors = static_cast<int>(operands.size());
  TF_ASSIGN_OR_RETURN(std::vector<Shape> shapes, ShapesOf(context->builder(), operands, tensors));
  TF_ASSIGN_OR_RETURN(const Topology topology, FindTopology(process_set()));
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
                      AddOrderedCall(context, operands, shapes, attributes()));
  SetOutputs(context, gathered);
  context->SetConstantOutput(tensors, rows);
  return absl::OkStatus();
}

BroadcastCall::BroadcastCall(OpKernelConstruction* context)
    : CollectiveCall(context, kBroadcastTarget) {
  OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
  OP_REQUIRES_OK(context, CopyNumber(context, kRootRank, &attributes()));
}

absl::Status BroadcastCall::CompileOrFail(XlaOpKernelContext* context) {
  const std::vector<XlaOp> operands = Operands(context);
  TF_ASSIGN_OR_RETURN(const std::vector<Shape> shapes,
                      ShapesOf(context->builder(), operands, context->num_outputs()));
  TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> received,
                      AddOrderedCall(context, operands, shapes, attributes()));
  SetOutputs(context, received);
  return absl::OkStatus();
}

BroadcastVariablesCall::BroadcastVariablesCall(OpKernelConstruction* context)
    : CollectiveCall(context, kBroadcastTarget) {
  OP_REQUIRES_OK(context, CopyTensorNames(context, &attributes()));
  OP_REQUIRES_OK(context, CopyNumber(context, kRootRank, &attributes()));
}

absl::Status BroadcastVariablesCall::CompileOrFail(XlaOpKernelContext* context) {
  const int count = context->num_inputs() - 1;
  std::vector<tensorflow::DataType> types(count);
  std::vector<XlaOp> values(count);
  for (int i = 0; i < count; ++i) {
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(context->GetVariableTypeAndShape(i, &types[i], &shape));
    TF_RETURN_IF_ERROR(context->ReadVariableInput(i, types[i], nullptr, &values[i]));
  }
  TF_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, ShapesOf(context->builder(), values, count));
  TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> received,
                      AddOrderedCall(context, values, shapes, attributes()));
  for (int i = 0; i < count; ++i) {
    TF_RETURN_IF_ERROR(context->AssignVariable(i, types[i], received[i]));
  }
  return absl::OkStatus();
}

}  // namespace tfdist
