// The settings of an engine. Plain values: reads no environment.
//
// Copy it freely; an engine keeps a copy, so later changes do not reach it. Copies share monitor,
// meter and timeline.
#ifndef TFDIST_CORE_VALUE_ENGINE_CONFIG_H_
#define TFDIST_CORE_VALUE_ENGINE_CONFIG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/value/status.h"

namespace tfdist {

class Meter;
class StallMonitor;
class Timeline;

// How an allreduce on GPUs of several hosts goes: over all ranks at once, or within each host and
// then between hosts, by NCCL or by the transport.
enum class Hierarchy { kNone, kNccl, kTransport };

// "off", "nccl" or "mpi".
const char* NameOf(Hierarchy hierarchy);

// False where none has this name.
bool FindHierarchy(const std::string& name, Hierarchy* found);

using Paths = std::vector<std::string>;

// Type and name of each setting that comes from outside, and has its default there. Libraries are
// where to look for what a GPU needs, best first.
#define TFDIST_SETTINGS(SETTING)                                                                \
  SETTING(double, stall_warning_seconds)   /* a report is written after this long; 0: never */  \
  SETTING(double, stall_shutdown_seconds)  /* a wait fails after this long; must be positive */ \
  SETTING(int64_t, fusion_threshold_bytes) /* of a bucket; 0: each tensor travels alone */      \
  SETTING(int64_t, window_bytes) /* of each rank, shared on its host; 0: messages only */       \
  SETTING(Paths, nccl_libraries)                                                                \
  SETTING(Paths, nvrtc_libraries)                                                               \
  SETTING(Paths, nvtx_libraries)                                                                \
  SETTING(std::string, kernel_cache) /* where compiled kernels are kept, if anywhere */         \
  SETTING(Hierarchy, hierarchy)                                                                 \
  SETTING(int64_t, process) /* this one's number, if it prints its stacks on SIGUSR1; else 0 */

struct EngineConfig {
#define TFDIST_SETTING(type, name) type name{};
  TFDIST_SETTINGS(TFDIST_SETTING)
#undef TFDIST_SETTING
  std::function<void(const std::string& report)> on_stall;  // null: write to stderr
  std::shared_ptr<StallMonitor> monitor;                    // null: the engine makes one
  std::shared_ptr<Meter> meter;                             // null: the engine makes one
  std::shared_ptr<Timeline> timeline;  // where calls are recorded; null: the engine makes one
};

// Reads "name=value", a line for each setting, and for each path of several. kInvalidArgument
// names what is missing, unknown or no value of its type.
Status ReadSettings(const std::string& text, EngineConfig* config);

// kInvalidArgument where an engine cannot run so.
Status CheckSettings(const EngineConfig& config);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_ENGINE_CONFIG_H_
