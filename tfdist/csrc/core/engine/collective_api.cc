#include "core/engine/collective_api.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/algorithm/fused_collective.h"
#include "core/engine/c_status.h"
#include "core/engine/engine.h"
#include "core/engine/pending_call.h"
#include "core/engine/unordered_calls.h"
#include "core/engine/world.h"

namespace tfdist {
namespace {

const UnorderedCalls::Words kWords = {
    " has the name of another tensor that is currently being processed. Use another name, or wait "
    "for that one first.",
    "Every rank must start the same collectives, under the same names."};

// The longest wait that the clock can count; the deadlines of the engine end any call before.
constexpr double kLongestWaitSeconds = 1e9;

// A copy of what a caller has described.
struct Started {
  std::string name;
  std::vector<std::string> tensor_names;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  AllreduceOptions reduction;
  std::vector<int64_t> splits;
  bool on_gpu = false;
  OnGpu gpu;
  std::weak_ptr<Engine> marked;  // by which gpu.mark was made

  const OnGpu* where() const { return on_gpu ? &gpu : nullptr; }
};

Status Wrong(const std::string& what) { return Status(StatusCode::kInvalidArgument, what); }

void CopyPlace(const tfdist_gpu* given, Started* started) {
  started->on_gpu = given != nullptr;
  if (given == nullptr) return;
  started->gpu.number = given->number;
  started->gpu.stream = given->stream;
}

Status Copy(const tfdist_tensors* given, Started* started) {
  if (given == nullptr || given->name == nullptr || *given->name == '\0') {
    return Wrong("a collective was started without a name; expected one that all ranks give it.");
  }
  started->name = given->name;
  if (given->count < 0 || (given->count > 0 && given->tensors == nullptr)) {
    return Wrong("collective " + Quoted(started->name) + " received " +
                 std::to_string(given->count) + " tensors; expected an array of 0 or more.");
  }
  for (int i = 0; i < given->count; ++i) {
    const tfdist_tensor& tensor = given->tensors[i];
    TensorView view;
    if (tensor.name == nullptr || tensor.dims < 0 || (tensor.dims > 0 && tensor.shape == nullptr)) {
      return Wrong("tensor " + std::to_string(i) + " of collective " + Quoted(started->name) +
                   " has no name or no shape; expected both.");
    }
    if (tensor.dtype == nullptr || !FindDType(tensor.dtype, &view.dtype)) {
      return Wrong("tensor " + Quoted(tensor.name) + " has dtype '" +
                   (tensor.dtype == nullptr ? "" : tensor.dtype) +
                   "'; expected the name of one that collectives carry, such as 'float32'.");
    }
    view.shape.assign(tensor.shape, tensor.shape + tensor.dims);
    view.data = tensor.input;
    started->tensor_names.push_back(tensor.name);
    started->inputs.push_back(view);
    view.data = tensor.output;
    started->outputs.push_back(view);
  }
  CopyPlace(given->gpu, started);
  return Status::Ok();
}

Status ExpectOnHost(const Started& started) {
  if (!started.on_gpu) return Status::Ok();
  return Wrong("collective " + Quoted(started.name) +
               " received tensors on a GPU; expected them in the host's memory. Of these functions "
               "only allreduce and broadcast take others.");
}

Status CopyReduction(const tfdist_reduction* given, Started* started) {
  AllreduceOptions* const options = &started->reduction;
  if (given == nullptr || given->reduction == nullptr ||
      !FindReduction(given->reduction, &options->reduction)) {
    return Wrong("collective " + Quoted(started->name) + " received reduction '" +
                 (given == nullptr || given->reduction == nullptr ? "" : given->reduction) +
                 "'; expected sum, average, min, max, product or adasum.");
  }
  if (given->compression == nullptr ||
      !FindCompression(given->compression, &options->compression)) {
    return Wrong("collective " + Quoted(started->name) + " received compression '" +
                 (given->compression == nullptr ? "" : given->compression) + "'; expected one of " +
                 DescribeCompressions() + ".");
  }
  options->name = started->name;
  options->tensor_names = started->tensor_names;
  options->prescale = given->prescale;
  options->postscale = given->postscale;
  return Status::Ok();
}

GatherOptions GatherOptionsOf(const Started& started) {
  GatherOptions options;
  options.name = started.name;
  options.tensor_names = started.tensor_names;
  return options;
}

// Makes the memory of result `index` when its shape is known.
Allocate IntoResults(const Started& started, PendingCall* call) {
  call->results.resize(started.inputs.size());
  return [&started, call](int index, const std::vector<int64_t>& shape, TensorView* output) {
    ResultMemory* const memory = &call->results[index];
    TFDIST_RETURN_IF_ERROR(ResultMemory::Make(started.inputs[index].dtype, shape, memory));
    *output = memory->tensor();
    return Status::Ok();
  };
}

using Body = Status (*)(Engine* engine, const Started& started, PendingCall* call);

Status Allreduce(Engine* engine, const Started& started, PendingCall*) {
  return engine->Allreduce(started.reduction, started.inputs, started.outputs, started.where());
}

Status ReduceScatter(Engine* engine, const Started& started, PendingCall* call) {
  const Topology& topology = engine->communicator().topology();
  const Allocate allocate = IntoResults(started, call);
  std::vector<TensorView> outputs = started.inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<int64_t> shape = outputs[i].shape;
    if (shape.empty()) continue;  // the engine refuses it
    const RowRange own = OwnRows(std::max<int64_t>(shape[0], 0), topology.rank, topology.size);
    shape[0] = own.end - own.begin;
    // Where there is no memory, the engine finds a result without: an error on all ranks.
    if (!allocate(static_cast<int>(i), shape, &outputs[i]).ok()) {
      outputs[i] = TensorView{started.inputs[i].dtype, shape, nullptr};
    }
  }
  return engine->ReduceScatter(started.reduction, started.inputs, outputs);
}

Status Allgather(Engine* engine, const Started& started, PendingCall* call) {
  std::vector<int64_t> rows;
  TFDIST_RETURN_IF_ERROR(engine->Allgather(GatherOptionsOf(started), started.inputs,
                                           IntoResults(started, call), &rows));
  call->results.push_back(ResultMemory::Of(rows));
  return Status::Ok();
}

Status Alltoall(Engine* engine, const Started& started, PendingCall* call) {
  std::vector<int64_t> received;
  TFDIST_RETURN_IF_ERROR(engine->Alltoall(started.name, started.inputs[0], started.splits,
                                          IntoResults(started, call), &received));
  call->results.push_back(ResultMemory::Of(received));
  return Status::Ok();
}

Status Barrier(Engine* engine, const Started& started, PendingCall*) {
  return engine->Barrier(started.name);
}

// What the stream holds now makes the inputs.
Status MarkInputs(int process_set, Started* started) {
  std::shared_ptr<Engine> engine;
  TFDIST_RETURN_IF_ERROR(World::Find(process_set, &engine));
  engine->Mark(&started->gpu);
  started->marked = engine;
  return Status::Ok();
}

// For a collective that does not run. An engine that is gone has taken its marks along.
void ForgetMark(Started* started) {
  const std::shared_ptr<Engine> engine = started->marked.lock();
  if (engine != nullptr) engine->Forget(&started->gpu);
  started->gpu.mark = nullptr;
}

Status Announce(int process_set, const std::shared_ptr<Started>& started,
                const std::function<Status(Engine*, const Started&, PendingCall*)>& body,
                int64_t* number) {
  const std::shared_ptr<PendingCall> pending = PendingCall::New(number);
  UnorderedCalls::Call call;
  call.key = Quoted(started->name);
  call.words = &kWords;
  call.run = [started, pending, body](Engine* engine) {
    // If the ranks have changed, the mark is of an engine before; this one forgets its own itself.
    if (started->marked.lock().get() != engine) ForgetMark(started.get());
    started->marked.reset();
    try {
      return body(engine, *started, pending.get());
    } catch (const std::exception& error) {  // such as a lack of memory
      return Status(StatusCode::kInternal, error.what());
    }
  };
  call.done = [started, pending](const Status& status) {
    ForgetMark(started.get());
    if (!started->on_gpu || !status.ok()) pending->End(status);
  };
  Status announced;
  if (started->on_gpu) {
    started->gpu.done = [pending](const Status& status) { pending->End(status); };
    announced = MarkInputs(process_set, started.get());
  }
  if (announced.ok()) announced = UnorderedCalls::Of(process_set).TryAnnounce(&call);
  if (announced.ok()) return announced;
  ForgetMark(started.get());
  PendingCall::Forget(*number);
  return announced;
}

Status Start(const tfdist_tensors* tensors, const tfdist_reduction* reduction, Body body,
             int64_t* number) {
  auto started = std::make_shared<Started>();
  TFDIST_RETURN_IF_ERROR(Copy(tensors, started.get()));
  if (body == Allreduce || body == ReduceScatter) {
    TFDIST_RETURN_IF_ERROR(CopyReduction(reduction, started.get()));
  }
  if (body != Allreduce) TFDIST_RETURN_IF_ERROR(ExpectOnHost(*started));
  return Announce(tensors->process_set, started, body, number);
}

Status StartBroadcast(const tfdist_tensors* tensors, int root, int64_t* number) {
  auto started = std::make_shared<Started>();
  TFDIST_RETURN_IF_ERROR(Copy(tensors, started.get()));
  const auto body = [root](Engine* engine, const Started& given, PendingCall*) {
    BroadcastOptions options;
    options.name = given.name;
    options.tensor_names = given.tensor_names;
    options.root = root;
    return engine->Broadcast(options, given.inputs, given.outputs, given.where());
  };
  return Announce(tensors->process_set, started, body, number);
}

Status StartAlltoall(const tfdist_tensors* tensors, const int64_t* splits, int split_count,
                     int64_t* number) {
  auto started = std::make_shared<Started>();
  TFDIST_RETURN_IF_ERROR(Copy(tensors, started.get()));
  if (started->inputs.size() != 1 || split_count < 0 || (split_count > 0 && splits == nullptr)) {
    return Wrong("alltoall " + Quoted(started->name) + " received " +
                 std::to_string(started->inputs.size()) + " tensors and " +
                 std::to_string(split_count) + " splits; expected one tensor and an array.");
  }
  started->splits.assign(splits, splits + split_count);
  TFDIST_RETURN_IF_ERROR(ExpectOnHost(*started));
  return Announce(tensors->process_set, started, Alltoall, number);
}

Status FindPending(int64_t number, std::shared_ptr<PendingCall>* call) {
  *call = PendingCall::Find(number);
  if (*call != nullptr) return Status::Ok();
  return Wrong("there is no collective of number " + std::to_string(number) +
               " to wait for, or it was waited for before. Wait for each once.");
}

Status WaitFor(int64_t number, double seconds, int* ended) {
  std::shared_ptr<PendingCall> call;
  *ended = 0;
  TFDIST_RETURN_IF_ERROR(FindPending(number, &call));
  const double bounded = std::isfinite(seconds) ? std::min(seconds, kLongestWaitSeconds) : 0;
  if (!call->WaitFor(static_cast<int64_t>(std::max(bounded, 0.0) * 1e9))) return Status::Ok();
  *ended = 1;
  return call->status();
}

Status TakeResult(int64_t number, int index, void** data, int64_t* rows) {
  std::shared_ptr<PendingCall> call;
  TFDIST_RETURN_IF_ERROR(FindPending(number, &call));
  const bool ended = call->WaitFor(0) && call->status().ok();
  const size_t count = ended ? call->results.size() : 0;
  if (index < 0 || static_cast<size_t>(index) >= count) {
    return Wrong("result " + std::to_string(index) + " was requested of a collective with " +
                 std::to_string(count) + " results; they are there once it has ended well.");
  }
  *rows = call->results[index].rows();
  *data = call->results[index].Release();
  return Status::Ok();
}

Status Join(int* last) {
  std::shared_ptr<Engine> engine;
  TFDIST_RETURN_IF_ERROR(World::Find(0, &engine));
  return engine->Join(last);
}

}  // namespace
}  // namespace tfdist

using tfdist::Guarded;

int tfdist_start_allreduce(const tfdist_tensors* tensors, const tfdist_reduction* reduction,
                           int64_t* number, char* message, int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::Start(tensors, reduction, tfdist::Allreduce, number); });
}

int tfdist_start_reducescatter(const tfdist_tensors* tensors, const tfdist_reduction* reduction,
                               int64_t* number, char* message, int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::Start(tensors, reduction, tfdist::ReduceScatter, number); });
}

int tfdist_start_broadcast(const tfdist_tensors* tensors, int root, int64_t* number, char* message,
                           int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::StartBroadcast(tensors, root, number); });
}

int tfdist_start_allgather(const tfdist_tensors* tensors, int64_t* number, char* message,
                           int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::Start(tensors, nullptr, tfdist::Allgather, number); });
}

int tfdist_start_alltoall(const tfdist_tensors* tensors, const int64_t* splits, int split_count,
                          int64_t* number, char* message, int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::StartAlltoall(tensors, splits, split_count, number); });
}

int tfdist_start_barrier(const tfdist_tensors* tensors, int64_t* number, char* message,
                         int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::Start(tensors, nullptr, tfdist::Barrier, number); });
}

int tfdist_wait(int64_t number, double seconds, int* ended, char* message, int message_size) {
  return Guarded(message, message_size, [&] { return tfdist::WaitFor(number, seconds, ended); });
}

int tfdist_result(int64_t number, int index, void** data, int64_t* rows, char* message,
                  int message_size) {
  return Guarded(message, message_size,
                 [&] { return tfdist::TakeResult(number, index, data, rows); });
}

void tfdist_free_result(void* data) { std::free(data); }

void tfdist_forget(int64_t number) { tfdist::PendingCall::Forget(number); }

int tfdist_join(int* last, char* message, int message_size) {
  return Guarded(message, message_size, [&] { return tfdist::Join(last); });
}
