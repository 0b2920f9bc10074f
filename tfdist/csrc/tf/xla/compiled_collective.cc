#include "tf/xla/compiled_collective.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/fused_collective.h"

namespace tfdist {
namespace {

// Says what is wrong with the rows that the ranks gave; all is well if all gave as many as this
// one.
Status CheckRows(const GatherOptions& options, const std::vector<TensorView>& inputs,
                 const std::vector<TensorView>& outputs, const std::vector<int64_t>& rows) {
  const size_t size = rows.size() / inputs.size();
  for (size_t t = 0; t < inputs.size(); ++t) {
    const auto begin = rows.begin() + static_cast<int64_t>(t * size);
    const int64_t own = inputs[t].shape.empty() ? 1 : inputs[t].shape[0];
    const bool equal =
        std::count(begin, begin + static_cast<int64_t>(size), *begin) == static_cast<int64_t>(size);
    if (equal && outputs[t].shape[0] == own * static_cast<int64_t>(size)) continue;
    std::string by_rank;
    for (size_t r = 0; r < size; ++r) by_rank += (r > 0 ? ", " : "") + std::to_string(begin[r]);
    return Status(StatusCode::kInvalidArgument,
                  "allgather '" + options.name +
                      "' inside jit_compile=True needs equally many rows "
                      "on every rank, the number that XLA compiled it for; received for tensor '" +
                      options.tensor_names[t] + "' by rank: " + by_rank +
                      ". Call it outside of the function with jit_compile=True.");
  }
  return Status::Ok();
}

}  // namespace

Status CompiledReducescatter(const Invocation& invocation, const AllreduceOptions& options,
                             Engine* engine, const OnGpu* gpu) {
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  const Communicator& communicator = engine->communicator();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const RowRange own = OwnRows(inputs[i].shape[0], communicator.rank(), communicator.size());
    if (outputs[i].shape[0] == own.end - own.begin) continue;
    return Status(StatusCode::kInvalidArgument,
                  "reducescatter '" + options.name +
                      "' was compiled by XLA for another rank or "
                      "number of ranks than " +
                      std::to_string(communicator.size()) +
                      ". Make a new tf.function after the number of ranks has changed.");
  }
  return engine->ReduceScatter(options, inputs, outputs, gpu);
}

Status CompiledAllgather(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  GatherOptions options;
  TFDIST_RETURN_IF_ERROR(ReadOptions(invocation, &options));
  options.equal_rows = true;
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  const auto allocate = [&outputs](int index, const std::vector<int64_t>& shape, TensorView* view) {
    if (shape != outputs[index].shape) {  // CheckRows says it better, and on every rank
      return Status(StatusCode::kInvalidArgument, "the result has another shape");
    }
    *view = outputs[index];
    return Status::Ok();
  };
  std::vector<int64_t> rows;
  const Status status = engine->Allgather(options, inputs, allocate, &rows, gpu);
  if (!rows.empty()) TFDIST_RETURN_IF_ERROR(CheckRows(options, inputs, outputs, rows));
  return status;
}

}  // namespace tfdist
