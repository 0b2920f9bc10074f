// A collective between the op that starts it and the op that waits for it: how it ended, once it
// has. Holds no tensor. Thread safe.
#ifndef TFDIST_CORE_AGREE_STARTED_CALL_H_
#define TFDIST_CORE_AGREE_STARTED_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/value/export.h"
#include "core/value/status.h"

namespace tfdist {

class TFDIST_API StartedCall {
 public:
  using Ended = std::function<void(const Status& status)>;

  // A new one, to be found by its number: positive, and never used again. Where nobody comes to
  // take it, because the step has failed, it stays until the process ends.
  static std::shared_ptr<StartedCall> New(int64_t* number);

  // Null if there is none of this number, or it was taken before.
  static std::shared_ptr<StartedCall> Take(int64_t number);

  // Each once; `ended` is called by whoever comes second.
  void End(const Status& status);
  void WhenEnded(const Ended& ended);

  // How long somebody has waited for its end, in nanoseconds; 0 where nobody had come by then.
  int64_t waited_ns();

 private:
  std::mutex mutex_;
  bool has_ended_ = false;
  Status status_;
  int64_t awaited_ns_ = 0;  // since when somebody waits, by the steady clock; 0: not yet
  int64_t waited_ns_ = 0;
  Ended ended_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_STARTED_CALL_H_
