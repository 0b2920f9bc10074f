// Collectives between tensors whose shapes XLA has fixed, on any platform: what is checked there on
// top of what the engine checks. Reads nothing that only one platform has.
#ifndef TFDIST_TF_XLA_COMPILED_COLLECTIVE_H_
#define TFDIST_TF_XLA_COMPILED_COLLECTIVE_H_

#include <cstdint>

#include "core/engine/engine.h"
#include "core/value/status.h"
#include "tf/xla/invocation.h"

namespace tfdist {

// What a handler runs. With `gpu` the tensors are in the memory of that GPU.
using CompiledCollective = Status (*)(const Invocation& invocation, Engine* engine,
                                      const OnGpu* gpu);

// `options` as read, with the factors.
Status CompiledAllreduce(const Invocation& invocation, int64_t weight, AllreduceOptions* options,
                         Engine* engine, const OnGpu* gpu);
Status CompiledReducescatter(const Invocation& invocation, const AllreduceOptions& options,
                             Engine* engine, const OnGpu* gpu);

Status CompiledBroadcast(const Invocation& invocation, Engine* engine, const OnGpu* gpu);

// Every rank must give the rows that this one was compiled for.
Status CompiledAllgather(const Invocation& invocation, Engine* engine, const OnGpu* gpu);

}  // namespace tfdist

#endif  // TFDIST_TF_XLA_COMPILED_COLLECTIVE_H_
