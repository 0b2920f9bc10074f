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

namespace tfdist {

class Meter;
class StallMonitor;
class Timeline;

// How an allreduce on GPUs of several hosts goes: over all ranks at once, or within each host and
// then between hosts, by NCCL or by the transport.
enum class Hierarchy { kNone, kNccl, kTransport };

struct EngineConfig {
  double stall_warning_seconds = 60;    // a report is written to stderr after this long; 0: never
  double stall_shutdown_seconds = 600;  // a wait fails after this long; must be positive
  int64_t fusion_threshold_bytes = 8 << 20;
  int64_t window_bytes = 1 << 20;  // of each rank, in memory shared on its host; 0: messages only
  // Where to look for what a GPU needs, best first; and where compiled kernels are kept, if
  // anywhere.
  std::vector<std::string> nccl_libraries;
  std::vector<std::string> nvrtc_libraries;
  std::vector<std::string> nvtx_libraries;
  std::string kernel_cache;
  Hierarchy hierarchy = Hierarchy::kNone;
  std::function<void(const std::string& report)> on_stall;  // null: write to stderr
  int64_t process = 0;                    // this one, if it prints its stacks on SIGUSR1; else 0
  std::shared_ptr<StallMonitor> monitor;  // null: the engine makes one
  std::shared_ptr<Meter> meter;           // null: the engine makes one
  std::shared_ptr<Timeline> timeline;     // where calls are recorded; null: the engine makes one
};

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_ENGINE_CONFIG_H_
