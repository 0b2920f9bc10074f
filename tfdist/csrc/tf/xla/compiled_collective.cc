#include "tf/xla/compiled_collective.h"

#include <string>
#include <vector>

#include "core/algorithm/fused_collective.h"
#include "tf/conversion.h"
#include "tf/xla/custom_call.h"

namespace tfdist {
namespace {

// Of what was compiled for `whom`, and not for the ranks that there are now.
Status Outdated(const std::string& collective, const std::string& whom,
                const Communicator& communicator) {
  return Status(StatusCode::kInvalidArgument,
                collective + " was compiled by XLA for a different " + whom + " than " +
                    std::to_string(communicator.size()) +
                    ". Make a new tf.function after the number of ranks has changed.");
}

}  // namespace

Status CompiledAllreduce(const Invocation& invocation, int64_t weight, AllreduceOptions* options,
                         Engine* engine, const OnGpu* gpu) {
  int64_t weighted = 0;
  TFDIST_RETURN_IF_ERROR(invocation.Number(kWeighted, &weighted));
  TFDIST_RETURN_IF_ERROR(ToWeight(options->name, weight, &options->weight));
  options->weighted = weighted != 0;
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  return engine->Allreduce(*options, inputs, outputs, gpu);
}

Status CompiledBroadcast(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  BroadcastOptions options;
  TFDIST_RETURN_IF_ERROR(ReadOptions(invocation, &options));
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  return engine->Broadcast(options, inputs, outputs, gpu);
}

Status CompiledReducescatter(const Invocation& invocation, const AllreduceOptions& options,
                             Engine* engine, const OnGpu* gpu) {
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  const Communicator& communicator = engine->communicator();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const RowRange own = OwnRows(inputs[i].shape[0], communicator.rank(), communicator.size());
    if (outputs[i].shape[0] == own.end - own.begin) continue;
    return Outdated("reducescatter '" + options.name + "'", "rank or number of ranks",
                    communicator);
  }
  return engine->ReduceScatter(options, inputs, outputs, gpu);
}

Status CompiledAllgather(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  GatherOptions options;
  TFDIST_RETURN_IF_ERROR(ReadOptions(invocation, &options));
  options.equal_rows = true;
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  Status outdated;
  const auto allocate = [&](int index, const std::vector<int64_t>& shape, TensorView* view) {
    if (shape != outputs[index].shape) {
      outdated =
          Outdated("allgather '" + options.name + "'", "number of ranks", engine->communicator());
    }
    *view = outputs[index];
    return outdated;
  };
  std::vector<int64_t> rows;
  const Status status = engine->Allgather(options, inputs, allocate, &rows, gpu);
  TFDIST_RETURN_IF_ERROR(outdated);
  if (status.code() != StatusCode::kInvalidArgument || rows.empty()) return status;
  return Status(status.code(), status.message() +
                                   " XLA has compiled it for the rows of this rank. Call it "
                                   "outside the function with jit_compile=True.");
}

}  // namespace tfdist
