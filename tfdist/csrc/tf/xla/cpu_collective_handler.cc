// Runs the collectives of code that XLA compiled for the CPU: the typed FFI handlers behind the
// custom calls that cpu_collective_call.cc makes. Compiles nothing.
//
// Handlers run on a thread of XLA and block it until the collective is done. Another platform
// registers handlers of its own under the same names.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "core/engine/engine.h"
#include "tf/conversion.h"
#include "tf/xla/compiled_collective.h"
#include "tf/xla/custom_call.h"
#include "tf/xla/invocation.h"

namespace tfdist {
namespace {

namespace ffi = xla::ffi;

template <typename T>
Status ReadScalar(const Invocation& invocation, size_t index, T* value) {
  TensorView view;
  TFDIST_RETURN_IF_ERROR(invocation.Operand(index, &view));
  std::memcpy(value, view.data, sizeof(T));
  return Status::Ok();
}

// The token comes out as it went in; that it goes through the call is what orders calls.
Status PassToken(const Invocation& invocation) {
  TensorView from, to;
  TFDIST_RETURN_IF_ERROR(invocation.Operand(invocation.operands() - 1, &from));
  TFDIST_RETURN_IF_ERROR(invocation.Result(invocation.results() - 1, &to));
  std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  return Status::Ok();
}

Status ReadReduction(const Invocation& invocation, AllreduceOptions* options) {
  const size_t tensors = invocation.results() - 1;
  TFDIST_RETURN_IF_ERROR(ReadOptions(invocation, options));
  TFDIST_RETURN_IF_ERROR(ReadScalar(invocation, tensors, &options->prescale));
  return ReadScalar(invocation, tensors + 1, &options->postscale);
}

Status Allreduce(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
  int64_t weight = 0;
  TFDIST_RETURN_IF_ERROR(ReadScalar(invocation, invocation.results() + 1, &weight));
  return CompiledAllreduce(invocation, weight, &options, engine, gpu);
}

Status Reducescatter(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
  return CompiledReducescatter(invocation, options, engine, gpu);
}

Status Barrier(const Invocation& invocation, Engine* engine, const OnGpu* /*gpu*/) {
  std::string name;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &name));
  return engine->Barrier(name);
}

template <CompiledCollective collective>
ffi::Error Run(ffi::RemainingArgs operands, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
  const Invocation invocation(operands, results, attributes);
  std::shared_ptr<Engine> engine;
  Status status = invocation.FindEngine(&engine);
  if (status.ok()) status = collective(invocation, engine.get(), nullptr);
  if (status.ok()) status = PassToken(invocation);
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
TFDIST_HANDLER(kAllgather, Run<CompiledAllgather>);
TFDIST_HANDLER(kBroadcast, Run<CompiledBroadcast>);
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
