#include "core/agree/started_call.h"

#include "core/agree/numbered.h"
#include "core/watch/steady_clock.h"

namespace tfdist {
std::shared_ptr<StartedCall> StartedCall::New(int64_t* number) {
  return Numbered<StartedCall>::OfProcess().New(number);
}

std::shared_ptr<StartedCall> StartedCall::Take(int64_t number) {
  return Numbered<StartedCall>::OfProcess().Take(number);
}

void StartedCall::End(const Status& status) {
  Ended ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
    status_ = status;
    if (awaited_ns_ != 0) waited_ns_ = SteadyNs() - awaited_ns_;
    ended = std::move(ended_);
  }
  if (ended) ended(status);
}

int64_t StartedCall::waited_ns() {
  std::lock_guard<std::mutex> lock(mutex_);
  return waited_ns_;
}

void StartedCall::WhenEnded(const Ended& ended) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!has_ended_) {
      awaited_ns_ = SteadyNs();
      ended_ = ended;
      return;
    }
  }
  ended(status_);
}

}  // namespace tfdist
