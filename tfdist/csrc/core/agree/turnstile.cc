#include "core/agree/turnstile.h"

namespace tfdist {

int64_t Turnstile::Announce() {
  std::lock_guard<std::mutex> lock(mutex_);
  return announced_++;
}

void Turnstile::Enter(int64_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, [&] { return current_ == place; });
}

void Turnstile::Leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++current_;
  left_.notify_all();
}

}  // namespace tfdist
