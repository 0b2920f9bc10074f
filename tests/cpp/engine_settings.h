// Settings of an engine as the C interface takes them, for tests and the programs over MPI.
#ifndef TESTS_CPP_ENGINE_SETTINGS_H_
#define TESTS_CPP_ENGINE_SETTINGS_H_

#include <cstdint>
#include <cstdlib>
#include <string>

inline std::string EngineSettings(double warning_seconds, double shutdown_seconds,
                                  int64_t threshold_bytes, int64_t window_bytes) {
  return "stall_warning_seconds=" + std::to_string(warning_seconds) +
         "\nstall_shutdown_seconds=" + std::to_string(shutdown_seconds) +
         "\nfusion_threshold_bytes=" + std::to_string(threshold_bytes) +
         "\nwindow_bytes=" + std::to_string(window_bytes) +
         "\nnccl_libraries=\nnvrtc_libraries=\nnvtx_libraries=\nkernel_cache=\nhierarchy=off\n"
         "process=0\n";
}

// The size of the window for programs that start by mpirun: TFDIST_SHARED_MEMORY, as in Python.
inline int64_t WindowBytes() {
  const char* const text = std::getenv("TFDIST_SHARED_MEMORY");
  return text == nullptr ? 1 << 20 : std::atoll(text);
}

#endif  // TESTS_CPP_ENGINE_SETTINGS_H_
