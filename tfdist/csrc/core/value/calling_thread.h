// The name that the calls of this thread carry, where several threads of a process call
// collectives. Not a thread: whoever calls from one of them names it.
//
// A name is part of what the ranks compare (call.h), so that a call of one thread is not taken for
// that of another. Each thread has its own, empty at first, which is also the main thread's.
#ifndef TFDIST_CORE_VALUE_CALLING_THREAD_H_
#define TFDIST_CORE_VALUE_CALLING_THREAD_H_

#include <string>
#include <utility>

#include "core/value/export.h"

namespace tfdist {

TFDIST_API const std::string& CallingThread();
TFDIST_API void SetCallingThread(std::string name);

// Lends a name to the thread that goes on with another one's call.
class CallingThreadScope {
 public:
  explicit CallingThreadScope(std::string name) : before_(CallingThread()) {
    SetCallingThread(std::move(name));
  }
  ~CallingThreadScope() { SetCallingThread(before_); }
  CallingThreadScope(const CallingThreadScope&) = delete;
  CallingThreadScope& operator=(const CallingThreadScope&) = delete;

 private:
  const std::string before_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_CALLING_THREAD_H_
