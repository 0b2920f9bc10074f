// The settings of an engine. Plain values: reads no environment, owns nothing but its callback.
//
// Copy it freely; an engine keeps a copy, so later changes do not reach it.
#ifndef TFDIST_CORE_ENGINE_CONFIG_H_
#define TFDIST_CORE_ENGINE_CONFIG_H_

#include <cstdint>
#include <functional>
#include <string>

namespace tfdist {

struct EngineConfig {
  double stall_warning_seconds = 60;     // a report is written to stderr after this long; 0: never
  double stall_shutdown_seconds = 1800;  // a wait fails after this long; must be positive
  int64_t fusion_threshold_bytes = 8 << 20;
  int64_t window_bytes = 1 << 20;  // of each rank, in memory shared on its host; 0: messages only
  std::function<void(const std::string& report)> on_stall;  // null: write to stderr
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_CONFIG_H_
