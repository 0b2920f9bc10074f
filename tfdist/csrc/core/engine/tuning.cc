#include "core/engine/tuning.h"

namespace tfdist {
namespace {

// Why it cannot be; empty if it can.
std::string Check(const Tuning& tuning, const TuningRoom& room) {
  if (tuning.fusion_threshold_bytes < 0) {
    return "the fusion threshold is " + std::to_string(tuning.fusion_threshold_bytes) +
           " bytes; expected 0 or more.";
  }
  const int64_t most = room.most_chunk_bytes;
  const int64_t chunk = tuning.chunk_bytes;
  if (chunk != 0 && (chunk < kLeastChunkBytes || chunk > most || chunk % 64 != 0)) {
    return "a chunk of shared memory is " + std::to_string(chunk) + " bytes; expected 0" +
           (most == 0 ? ", since the ranks share none."
                      : ", or a multiple of 64 from " + std::to_string(kLeastChunkBytes) + " to " +
                            std::to_string(most) + ".");
  }
  if (tuning.hierarchy != Hierarchy::kNone && tuning.hierarchy != room.hierarchy) {
    return "the hierarchy of hosts differs from the one the engine was started with; expected "
           "that one, or none.";
  }
  return "";
}

}  // namespace

Call CallOf(const Tuning& tuning, const TuningRoom& room) {
  Call call;
  call.operation = Operation::kTune;
  call.name = "chunks of " + std::to_string(tuning.chunk_bytes) + " bytes";
  call.fusion_threshold_bytes = tuning.fusion_threshold_bytes;
  call.hierarchy = tuning.hierarchy;
  call.error = Check(tuning, room);
  return call;
}

}  // namespace tfdist
