// Runs the collectives of code that XLA compiled for the CPU: the typed FFI handlers behind the
// custom calls that collective_call.cc makes. Compiles nothing.
//
// Handlers run on a thread of XLA and block it until the collective is done. Another platform
// registers handlers of its own under the same names.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"
#include "core/world.h"
#include "tf/conversion.h"
#include "tf/xla/custom_call.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow's own; its header would pull in the compiler.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfdist {
namespace {

namespace ffi = xla::ffi;

Status FromHandler(const ffi::Error& error) {
  return Status(StatusCode::kInternal, "XLA called tfdist with unexpected arguments: " +
                                           error.message() + ". Build tfdist again.");
}

Status ToDType(ffi::DataType type, DType* out) {
  struct Pair {
    ffi::DataType from;
    DType to;
  };
  static constexpr Pair kPairs[] = {
      {ffi::DataType::PRED, DType::kBool},     {ffi::DataType::U8, DType::kUint8},
      {ffi::DataType::S8, DType::kInt8},       {ffi::DataType::U16, DType::kUint16},
      {ffi::DataType::S16, DType::kInt16},     {ffi::DataType::S32, DType::kInt32},
      {ffi::DataType::S64, DType::kInt64},     {ffi::DataType::F16, DType::kFloat16},
      {ffi::DataType::BF16, DType::kBfloat16}, {ffi::DataType::F32, DType::kFloat32},
      {ffi::DataType::F64, DType::kFloat64},
  };
  for (const Pair& pair : kPairs) {
    if (pair.from != type) continue;
    *out = pair.to;
    return Status::Ok();
  }
  return Status(StatusCode::kInternal, "XLA gave a collective a tensor of its type " +
                                           std::to_string(static_cast<int>(type)) +
                                           ", which tfdist does not know.");
}

Status ToTensorView(const ffi::AnyBuffer& buffer, TensorView* out) {
  TFDIST_RETURN_IF_ERROR(ToDType(buffer.element_type(), &out->dtype));
  out->shape.assign(buffer.dimensions().begin(), buffer.dimensions().end());
  out->data = buffer.untyped_data();
  return Status::Ok();
}

// One call as XLA makes it.
class Invocation {
 public:
  Invocation(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
             const ffi::Dictionary& attributes)
      : operands_(operands), results_(results), attributes_(attributes) {}

  Status Number(const char* name, int64_t* value) const { return Attribute(name, value); }

  Status Text(const char* name, std::string* value) const {
    std::string_view view;
    TFDIST_RETURN_IF_ERROR(Attribute(name, &view));
    *value = std::string(view);
    return Status::Ok();
  }

  Status TensorNames(std::vector<std::string>* names) const {
    std::string joined;
    TFDIST_RETURN_IF_ERROR(Text(kTensorNames, &joined));
    for (size_t begin = 0; begin <= joined.size();) {
      const size_t end = std::min(joined.find(kSeparator, begin), joined.size());
      names->push_back(joined.substr(begin, end - begin));
      begin = end + 1;
    }
    return Status::Ok();
  }

  Status FindEngine(std::shared_ptr<Engine>* engine) const {
    int64_t process_set = 0;
    TFDIST_RETURN_IF_ERROR(Number(kProcessSet, &process_set));
    return World::Find(static_cast<int>(process_set), engine);
  }

  // Results without the token.
  size_t tensors() const { return results_.size() - 1; }

  Status Operand(size_t index, TensorView* view) const {
    const auto buffer = operands_.get<ffi::AnyBuffer>(index);
    return buffer.has_value() ? ToTensorView(*buffer, view) : FromHandler(buffer.error());
  }

  Status Result(size_t index, TensorView* view) const {
    auto buffer = results_.get<ffi::AnyBuffer>(index);
    return buffer.has_value() ? ToTensorView(**buffer, view) : FromHandler(buffer.error());
  }

  Status Tensors(std::vector<TensorView>* inputs, std::vector<TensorView>* outputs) const {
    inputs->resize(tensors());
    outputs->resize(tensors());
    for (size_t i = 0; i < tensors(); ++i) {
      TFDIST_RETURN_IF_ERROR(Operand(i, &(*inputs)[i]));
      TFDIST_RETURN_IF_ERROR(Result(i, &(*outputs)[i]));
    }
    return Status::Ok();
  }

  template <typename T>
  Status Scalar(size_t index, T* value) const {
    TensorView view;
    TFDIST_RETURN_IF_ERROR(Operand(index, &view));
    std::memcpy(value, view.data, sizeof(T));
    return Status::Ok();
  }

  // The token comes out as it went in; that it goes through the call is what orders calls.
  Status PassToken() const {
    TensorView from, to;
    TFDIST_RETURN_IF_ERROR(Operand(operands_.size() - 1, &from));
    TFDIST_RETURN_IF_ERROR(Result(tensors(), &to));
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
    return Status::Ok();
  }

 private:
  template <typename T>
  Status Attribute(const char* name, T* value) const {
    const auto found = attributes_.get<T>(name);
    if (!found.has_value()) return FromHandler(found.error());
    *value = *found;
    return Status::Ok();
  }

  const ffi::RemainingArgs& operands_;
  const ffi::RemainingRets& results_;
  const ffi::Dictionary& attributes_;
};

Status ReadReduction(const Invocation& invocation, AllreduceOptions* options) {
  std::string reduction, compression;
  const size_t tensors = invocation.tensors();
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options->name));
  TFDIST_RETURN_IF_ERROR(invocation.TensorNames(&options->tensor_names));
  TFDIST_RETURN_IF_ERROR(invocation.Text(kReduction, &reduction));
  TFDIST_RETURN_IF_ERROR(invocation.Text(kCompression, &compression));
  TFDIST_RETURN_IF_ERROR(ToReduction(reduction, &options->reduction));
  TFDIST_RETURN_IF_ERROR(ToCompression(compression, &options->compression));
  TFDIST_RETURN_IF_ERROR(invocation.Scalar(tensors, &options->prescale));
  return invocation.Scalar(tensors + 1, &options->postscale);
}

Status Allreduce(const Invocation& invocation, Engine* engine) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
  int64_t weighted = 0, weight = 0;
  TFDIST_RETURN_IF_ERROR(invocation.Number(kWeighted, &weighted));
  TFDIST_RETURN_IF_ERROR(invocation.Scalar(invocation.tensors() + 2, &weight));
  TFDIST_RETURN_IF_ERROR(ToWeight(options.name, weight, &options.weight));
  options.weighted = weighted != 0;
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  return engine->Allreduce(options, inputs, outputs);
}

Status Reducescatter(const Invocation& invocation, Engine* engine) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
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
  return engine->ReduceScatter(options, inputs, outputs);
}

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

Status Allgather(const Invocation& invocation, Engine* engine) {
  GatherOptions options;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options.name));
  TFDIST_RETURN_IF_ERROR(invocation.TensorNames(&options.tensor_names));
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
  const Status status = engine->Allgather(options, inputs, allocate, &rows);
  if (!rows.empty()) TFDIST_RETURN_IF_ERROR(CheckRows(options, inputs, outputs, rows));
  return status;
}

Status Broadcast(const Invocation& invocation, Engine* engine) {
  BroadcastOptions options;
  int64_t root = 0;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options.name));
  TFDIST_RETURN_IF_ERROR(invocation.TensorNames(&options.tensor_names));
  TFDIST_RETURN_IF_ERROR(invocation.Number(kRootRank, &root));
  options.root = static_cast<int>(root);
  std::vector<TensorView> inputs, outputs;
  TFDIST_RETURN_IF_ERROR(invocation.Tensors(&inputs, &outputs));
  const Topology& topology = engine->communicator().topology();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t bytes = topology.world_ranks[topology.rank] == root ? inputs[i].bytes() : 0;
    if (bytes > 0) std::memcpy(outputs[i].data, inputs[i].data, static_cast<size_t>(bytes));
  }
  return engine->Broadcast(options, outputs);
}

Status Barrier(const Invocation& invocation, Engine* engine) {
  std::string name;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &name));
  return engine->Barrier(name);
}

ffi::Error ToXla(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), status.message());
}

using Collective = Status (*)(const Invocation& invocation, Engine* engine);

template <Collective collective>
ffi::Error Run(ffi::RemainingArgs operands, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
  const Invocation invocation(operands, results, attributes);
  std::shared_ptr<Engine> engine;
  Status status = invocation.FindEngine(&engine);
  if (status.ok()) status = collective(invocation, engine.get());
  if (status.ok()) status = invocation.PassToken();
  return ToXla(status);
}

Status ReadTopology(const Invocation& invocation) {
  std::shared_ptr<Engine> engine;
  TFDIST_RETURN_IF_ERROR(invocation.FindEngine(&engine));
  std::string what;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kWhat, &what));
  TensorView result;
  TFDIST_RETURN_IF_ERROR(invocation.Result(0, &result));
  *static_cast<int32_t*>(result.data) = TopologyValue(engine->communicator().topology(), what);
  return Status::Ok();
}

ffi::Error RunTopology(ffi::RemainingArgs operands, ffi::RemainingRets results,
                       ffi::Dictionary attributes) {
  return ToXla(ReadTopology(Invocation(operands, results, attributes)));
}

#define TFDIST_HANDLER(name, function) \
  XLA_FFI_DEFINE_HANDLER(name, function, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs())

TFDIST_HANDLER(kAllreduce, Run<Allreduce>);
TFDIST_HANDLER(kReducescatter, Run<Reducescatter>);
TFDIST_HANDLER(kAllgather, Run<Allgather>);
TFDIST_HANDLER(kBroadcast, Run<Broadcast>);
TFDIST_HANDLER(kBarrier, Run<Barrier>);
TFDIST_HANDLER(kTopology, RunTopology);

constexpr char kCpu[] = "Host";

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAllreduceTarget, kCpu, kAllreduce);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kReducescatterTarget, kCpu, kReducescatter);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAllgatherTarget, kCpu, kAllgather);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBroadcastTarget, kCpu, kBroadcast);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBarrierTarget, kCpu, kBarrier);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kTopologyTarget, kCpu, kTopology);

}  // namespace
}  // namespace tfdist
