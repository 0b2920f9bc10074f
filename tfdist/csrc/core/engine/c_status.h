// How a C function of the core ends: a code of StatusCode, and the message copied out. No exception
// leaves. Declares no C function.
#ifndef TFDIST_CORE_ENGINE_C_STATUS_H_
#define TFDIST_CORE_ENGINE_C_STATUS_H_

#include <cstddef>
#include <cstdio>
#include <exception>

#include "core/value/status.h"

namespace tfdist {

// Copies the message out and turns the status into its code.
inline int Hand(const Status& status, char* message, int message_size) {
  if (message != nullptr && message_size > 0) {
    std::snprintf(message, static_cast<size_t>(message_size), "%s", status.message().c_str());
  }
  return static_cast<int>(status.code());
}

// Runs `body` and turns what it throws, such as a lack of memory, into a status.
template <typename Body>
int Guarded(char* message, int message_size, const Body& body) {
  try {
    return Hand(body(), message, message_size);
  } catch (const std::exception& error) {
    return Hand(Status(StatusCode::kInternal, error.what()), message, message_size);
  }
}

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_C_STATUS_H_
