#include "core/agree/started_call.h"

#include <unordered_map>

#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

struct StartedCalls {
  std::mutex mutex;
  int64_t last = 0;
  std::unordered_map<int64_t, std::shared_ptr<StartedCall>> by_number;
};

// Never destroyed: threads of devices may outlive static objects.
StartedCalls& TheCalls() {
  static StartedCalls* const calls = new StartedCalls;
  return *calls;
}

}  // namespace

std::shared_ptr<StartedCall> StartedCall::New(int64_t* number) {
  StartedCalls& calls = TheCalls();
  std::lock_guard<std::mutex> lock(calls.mutex);
  *number = ++calls.last;
  return calls.by_number[*number] = std::make_shared<StartedCall>();
}

std::shared_ptr<StartedCall> StartedCall::Take(int64_t number) {
  StartedCalls& calls = TheCalls();
  std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.by_number.find(number);
  if (found == calls.by_number.end()) return nullptr;
  std::shared_ptr<StartedCall> call = std::move(found->second);
  calls.by_number.erase(found);
  return call;
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
