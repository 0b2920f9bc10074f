// How an engine runs its collectives, where that may change between two of them, alike on all
// ranks. Plain values and their checks: changes nothing.
#ifndef TFDIST_CORE_ENGINE_TUNING_H_
#define TFDIST_CORE_ENGINE_TUNING_H_

#include <cstdint>

#include "core/value/call.h"
#include "core/value/engine_config.h"

namespace tfdist {

struct Tuning {
  int64_t fusion_threshold_bytes = 0;
  // What a rank shows the others of its host at a time, a multiple of 64: from kLeastChunkBytes to
  // all that its shared memory has room for at once, which is 0 too.
  int64_t chunk_bytes = 0;
  Hierarchy hierarchy = Hierarchy::kNone;  // none, or that of the EngineConfig
};

constexpr int64_t kLeastChunkBytes = 8 << 10;

// What an engine can run: the largest chunk, 0 where its ranks share no memory, and its hierarchy.
struct TuningRoom {
  int64_t most_chunk_bytes = 0;
  Hierarchy hierarchy = Hierarchy::kNone;
};

// The call by which all ranks agree on `tuning`; its error says why it cannot be, if it cannot.
Call CallOf(const Tuning& tuning, const TuningRoom& room);

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_TUNING_H_
