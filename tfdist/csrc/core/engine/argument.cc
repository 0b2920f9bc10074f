#include "core/engine/argument.h"

#include <algorithm>
#include <cmath>

#include "core/algorithm/fused_collective.h"

namespace tfdist {
namespace {

std::string CheckNames(const std::string& call, size_t names, size_t tensors) {
  if (names == tensors) return "";
  return call + " received " + std::to_string(names) + " tensor names for " +
         std::to_string(tensors) + " tensors; expected one name for each tensor.";
}

std::string CheckCounts(const std::string& call, size_t names, size_t inputs, size_t outputs) {
  if (names != inputs || inputs == outputs) return CheckNames(call, names, inputs);
  return call + " received " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
         " outputs; expected one output for each input.";
}

std::string TensorTitle(const std::string& call, const std::string& name) {
  return call + ": tensor " + Quoted(name);
}

// Makes no text unless there is an error: it is called for every tensor of every step.
std::string CheckTensor(const std::string& call, const std::string& name,
                        const TensorView& tensor) {
  const bool negative =
      std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim < 0; });
  if (negative) {
    return TensorTitle(call, name) + " has shape " + ShapeString(tensor.shape) +
           "; expected no negative dimension. Pass a tensor whose shape is known.";
  }
  if (tensor.data == nullptr && tensor.count() > 0) {
    return TensorTitle(call, name) + " of shape " + ShapeString(tensor.shape) +
           " has no memory; expected the address of its elements.";
  }
  return "";
}

std::string CheckArithmetic(const std::string& call, const std::string& name,
                            const AllreduceOptions& options, DType dtype) {
  if (IsFloating(dtype)) return "";
  const std::string title = TensorTitle(call, name) + " has dtype " + NameOf(dtype);
  if (options.reduction == Reduction::kAverage || options.reduction == Reduction::kAdasum) {
    return title + ", but reduction " + NameOf(options.reduction) +
           " needs a floating dtype. Use sum, or cast the tensor to float32.";
  }
  if (options.prescale != 1 || options.postscale != 1) {
    return title +
           ", but prescale and postscale need a floating dtype. Leave both at 1, or cast the "
           "tensor to float32.";
  }
  return "";
}

std::string CheckOutput(const std::string& call, const std::string& name, DType dtype,
                        const std::vector<int64_t>& shape, const TensorView& output) {
  if (output.dtype == dtype && output.shape == shape) return CheckTensor(call, name, output);
  return call + ": the output for tensor " + Quoted(name) + " has dtype " + NameOf(output.dtype) +
         " and shape " + ShapeString(output.shape) + "; expected " + NameOf(dtype) + " and " +
         ShapeString(shape) + ".";
}

// Where each has the shape of its input.
std::string CheckOutputs(const std::string& call, const std::vector<std::string>& names,
                         const std::vector<TensorView>& inputs,
                         const std::vector<TensorView>& outputs) {
  std::string error;
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    error = CheckOutput(call, names[i], inputs[i].dtype, inputs[i].shape, outputs[i]);
  }
  return error;
}

// What all reductions ask for; the outputs are looked at by the caller.
std::string CheckReduction(const std::string& call, const AllreduceOptions& options,
                           const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs) {
  std::string error = CheckCounts(call, options.tensor_names.size(), inputs.size(), outputs.size());
  if (!error.empty()) return error;
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    return call + " received prescale " + std::to_string(options.prescale) + " and postscale " +
           std::to_string(options.postscale) + "; expected finite numbers.";
  }
  if (options.weighted && options.reduction != Reduction::kAverage) {
    return call + " received weights for reduction " + NameOf(options.reduction) +
           "; weights need average.";
  }
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    error = CheckTensor(call, options.tensor_names[i], inputs[i]);
    if (error.empty()) {
      error = CheckArithmetic(call, options.tensor_names[i], options, inputs[i].dtype);
    }
  }
  return error;
}

}  // namespace

std::string CheckAllreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs) {
  const std::string call = "allreduce " + Quoted(options.name);
  const std::string error = CheckReduction(call, options, inputs, outputs);
  return error.empty() ? CheckOutputs(call, options.tensor_names, inputs, outputs) : error;
}

std::string CheckReduceScatter(const AllreduceOptions& options,
                               const std::vector<TensorView>& inputs,
                               const std::vector<TensorView>& outputs, const Topology& topology) {
  const std::string call = "reducescatter " + Quoted(options.name);
  std::string error = CheckReduction(call, options, inputs, outputs);
  if (error.empty() && options.reduction == Reduction::kAdasum) {
    return call + " received reduction adasum; expected sum, average, min, max or product.";
  }
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    const std::string& name = options.tensor_names[i];
    std::vector<int64_t> shape = inputs[i].shape;
    if (shape.empty()) {
      return call + ": tensor " + Quoted(name) +
             " is a scalar; expected at least one dimension, whose rows are distributed. Use "
             "allreduce for a scalar.";
    }
    const RowRange own = OwnRows(shape[0], topology.rank, topology.size);
    shape[0] = own.end - own.begin;
    error = CheckOutput(call, name, inputs[i].dtype, shape, outputs[i]);
  }
  return error;
}

std::string CheckBroadcast(const BroadcastOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs, const Topology& topology) {
  const std::string call = "broadcast " + Quoted(options.name);
  std::string error = CheckCounts(call, options.tensor_names.size(), inputs.size(), outputs.size());
  if (!error.empty()) return error;
  const std::vector<int>& ranks = topology.world_ranks;
  if (std::count(ranks.begin(), ranks.end(), options.root) == 0) {
    return call + " received root " + std::to_string(options.root) + "; expected one of " +
           RankList(ranks) + ".";
  }
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    error = CheckTensor(call, options.tensor_names[i], inputs[i]);
  }
  return error.empty() ? CheckOutputs(call, options.tensor_names, inputs, outputs) : error;
}

std::string CheckAllgather(const GatherOptions& options, const std::vector<TensorView>& inputs) {
  const std::string call = "allgather " + Quoted(options.name);
  std::string error = CheckNames(call, options.tensor_names.size(), inputs.size());
  for (size_t i = 0; i < inputs.size() && error.empty(); ++i) {
    error = CheckTensor(call, options.tensor_names[i], inputs[i]);
  }
  return error;
}

std::string CheckAlltoall(const std::string& name, const TensorView& input,
                          const std::vector<int64_t>& splits, int size) {
  const std::string call = "alltoall " + Quoted(name);
  const std::string error = CheckTensor(call, name, input);
  if (!error.empty()) return error;
  if (input.shape.empty()) {
    return call +
           " received a scalar; expected at least one dimension, whose rows are "
           "distributed.";
  }
  const std::string rows = std::to_string(input.shape[0]) + " rows";
  const std::string ranks = std::to_string(size) + (size == 1 ? " rank" : " ranks");
  if (splits.empty()) {
    if (input.shape[0] % size == 0) return "";
    return call + " received " + rows + " and no splits; " + ranks +
           " cannot get equal numbers of them. Pass splits, one number of rows for each rank.";
  }
  if (splits.size() != static_cast<size_t>(size)) {
    return call + " received " + std::to_string(splits.size()) + " splits; expected " +
           std::to_string(size) + ", one number of rows for each rank.";
  }
  int64_t total = 0;
  for (int64_t split : splits) {
    if (split < 0 || split > input.shape[0] - total) {
      total = -1;
      break;
    }
    total += split;
  }
  if (total == input.shape[0]) return "";
  return call + " received splits that are negative or do not add up to the " + rows +
         " of its tensor. Assign every row to one rank.";
}

std::string CheckRanks(const std::vector<int>& ranks, int size) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(),
                                            [](int a, int b) { return a >= b; }) == ranks.end();
  if (!ranks.empty() && ascending && ranks.front() >= 0 && ranks.back() < size) return "";
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "a process set received the ranks [" + text +
         "]; expected one or more distinct ranks of 0 to " + std::to_string(size - 1) +
         ", ascending.";
}

}  // namespace tfdist
