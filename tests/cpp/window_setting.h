// The size of the window for programs that start by mpirun: TFDIST_SHARED_MEMORY, as in Python.
#ifndef TESTS_CPP_WINDOW_SETTING_H_
#define TESTS_CPP_WINDOW_SETTING_H_

#include <cstdint>
#include <cstdlib>

#include "core/value/engine_config.h"

inline int64_t WindowBytes() {
  const char* const text = std::getenv("TFDIST_SHARED_MEMORY");
  return text == nullptr ? tfdist::EngineConfig().window_bytes : std::atoll(text);
}

#endif  // TESTS_CPP_WINDOW_SETTING_H_
