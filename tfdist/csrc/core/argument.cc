#include "core/argument.h"

#include <algorithm>
#include <cmath>

namespace tfdist {
namespace {

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

std::string CheckNames(const std::string& call, size_t names, size_t tensors) {
  if (names == tensors) return "";
  return call + " received " + std::to_string(names) + " tensor names for " +
         std::to_string(tensors) + " tensors; expected one name for each tensor.";
}

std::string CheckTensor(const std::string& call, const std::string& name,
                        const TensorView& tensor) {
  const std::string title = call + ": tensor " + Quoted(name);
  const bool negative =
      std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim < 0; });
  if (negative) {
    return title + " has shape " + ShapeString(tensor.shape) +
           "; expected no negative dimension. Pass a tensor whose shape is known.";
  }
  if (tensor.data == nullptr && tensor.count() > 0) {
    return title + " of shape " + ShapeString(tensor.shape) +
           " has no memory; expected the address of its elements.";
  }
  return "";
}

std::string CheckArithmetic(const std::string& call, const std::string& name,
                            const AllreduceOptions& options, DType dtype) {
  if (IsFloating(dtype)) return "";
  const std::string title = call + ": tensor " + Quoted(name) + " has dtype " + NameOf(dtype);
  if (options.reduction == Reduction::kAverage) {
    return title +
           ", but reduction average needs a floating dtype. Use sum, or cast the tensor to "
           "float32.";
  }
  if (options.prescale != 1 || options.postscale != 1) {
    return title +
           ", but prescale and postscale need a floating dtype. Leave both at 1, or cast the "
           "tensor to float32.";
  }
  return "";
}

std::string CheckPair(const std::string& call, const std::string& name, const TensorView& input,
                      const TensorView& output) {
  if (output.dtype == input.dtype && output.shape == input.shape) {
    return CheckTensor(call, name, output);
  }
  return call + ": the output for tensor " + Quoted(name) + " has dtype " + NameOf(output.dtype) +
         " and shape " + ShapeString(output.shape) + "; expected those of the input, " +
         NameOf(input.dtype) + " and " + ShapeString(input.shape) + ".";
}

}  // namespace

std::string CheckAllreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs) {
  const std::string call = "allreduce " + Quoted(options.name);
  std::string error = CheckNames(call, options.tensor_names.size(), inputs.size());
  if (!error.empty()) return error;
  if (inputs.size() != outputs.size()) {
    return call + " received " + std::to_string(inputs.size()) + " inputs and " +
           std::to_string(outputs.size()) + " outputs; expected one output for each input.";
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    return call + " received prescale " + std::to_string(options.prescale) + " and postscale " +
           std::to_string(options.postscale) + "; expected finite numbers.";
  }
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    const std::string& name = options.tensor_names[i];
    error = CheckTensor(call, name, inputs[i]);
    if (error.empty()) error = CheckPair(call, name, inputs[i], outputs[i]);
    if (error.empty()) error = CheckArithmetic(call, name, options, inputs[i].dtype);
  }
  return error;
}

std::string CheckBroadcast(const BroadcastOptions& options, const std::vector<TensorView>& tensors,
                           int size) {
  const std::string call = "broadcast " + Quoted(options.name);
  std::string error = CheckNames(call, options.tensor_names.size(), tensors.size());
  if (!error.empty()) return error;
  if (options.root < 0 || options.root >= size) {
    return call + " received root " + std::to_string(options.root) + "; expected 0 to " +
           std::to_string(size - 1) + ", since there are " + std::to_string(size) + " ranks.";
  }
  for (size_t i = 0; i < tensors.size() && error.empty(); ++i) {
    error = CheckTensor(call, options.tensor_names[i], tensors[i]);
  }
  return error;
}

std::string CheckAllgather(const std::string& name, const TensorView& input) {
  return CheckTensor("allgather " + Quoted(name), name, input);
}

}  // namespace tfdist
