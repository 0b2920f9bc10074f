// Runs the collectives of code that XLA compiled for a GPU of NVIDIA: the typed FFI handlers behind
// the custom calls that gpu_collective_call.cc makes. Compiles nothing.
//
// Handlers run while XLA puts its program into a stream of the GPU. They wait, on the host, for the
// ranks to agree; the collective itself goes into a stream of the engine, which waits for XLA's,
// and what XLA puts into its stream afterwards waits for the collective. So an error of the
// agreement is the call's own, and what fails on the GPU later is returned by the next collective.
//
// A replayed CUDA graph would leave out the agreement, so the handlers are not registered as fit
// for one: XLA ends a graph before them and begins another one after them.
#include <cstdint>
#include <memory>

#include "core/engine/engine.h"
#include "tf/conversion.h"
#include "tf/xla/compiled_collective.h"
#include "tf/xla/custom_call.h"
#include "tf/xla/invocation.h"

namespace tfdist {
namespace {

namespace ffi = xla::ffi;

Status ReadReduction(const Invocation& invocation, AllreduceOptions* options) {
  TFDIST_RETURN_IF_ERROR(ReadOptions(invocation, options));
  TFDIST_RETURN_IF_ERROR(invocation.Factor(kPrescale, &options->prescale));
  return invocation.Factor(kPostscale, &options->postscale);
}

Status Allreduce(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
  int64_t weight = 0;
  TFDIST_RETURN_IF_ERROR(invocation.Number(kWeight, &weight));
  return CompiledAllreduce(invocation, weight, &options, engine, gpu);
}

// XLA's stream goes on beside it, until Await.
Status StartAllreduce(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  OnGpu beside = *gpu;
  beside.precedes = false;
  return Allreduce(invocation, engine, &beside);
}

Status Await(const Invocation& /*invocation*/, Engine* engine, const OnGpu* gpu) {
  return engine->Precede(*gpu);
}

Status Reducescatter(const Invocation& invocation, Engine* engine, const OnGpu* gpu) {
  AllreduceOptions options;
  TFDIST_RETURN_IF_ERROR(ReadReduction(invocation, &options));
  return CompiledReducescatter(invocation, options, engine, gpu);
}

// The token needs no work: it comes out in the memory it came in with.
template <CompiledCollective collective>
ffi::Error Run(void* stream, int32_t ordinal, ffi::RemainingArgs operands,
               ffi::RemainingRets results, ffi::Dictionary attributes) {
  const Invocation invocation(operands, results, attributes);
  OnGpu gpu;
  gpu.number = ordinal;
  gpu.stream = stream;
  gpu.precedes = true;
  gpu.done = [](const Status&) {};  // XLA asks no call for it
  std::shared_ptr<Engine> engine;
  Status status = invocation.FindEngine(&engine);
  if (status.ok()) status = collective(invocation, engine.get(), &gpu);
  // XLA gives its memory back then, with what an earlier call has started still at work on it.
  if (!status.ok() && engine != nullptr) static_cast<void>(engine->Precede(gpu));
  return ToXla(status);
}

#define TFDIST_HANDLER(name, collective)                        \
  XLA_FFI_DEFINE_HANDLER(name, Run<collective>,                 \
                         ffi::Ffi::Bind()                       \
                             .Ctx<ffi::PlatformStream<void*>>() \
                             .Ctx<ffi::DeviceOrdinal>()         \
                             .RemainingArgs()                   \
                             .RemainingRets()                   \
                             .Attrs())

TFDIST_HANDLER(kAllreduce, Allreduce);
TFDIST_HANDLER(kStartAllreduce, StartAllreduce);
TFDIST_HANDLER(kAwait, Await);
TFDIST_HANDLER(kReducescatter, Reducescatter);
TFDIST_HANDLER(kAllgather, CompiledAllgather);
TFDIST_HANDLER(kBroadcast, CompiledBroadcast);

constexpr char kCuda[] = "CUDA";

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAllreduceTarget, kCuda, kAllreduce);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kStartAllreduceTarget, kCuda, kStartAllreduce);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAwaitTarget, kCuda, kAwait);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kReducescatterTarget, kCuda, kReducescatter);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kAllgatherTarget, kCuda, kAllgather);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBroadcastTarget, kCuda, kBroadcast);

}  // namespace
}  // namespace tfdist
