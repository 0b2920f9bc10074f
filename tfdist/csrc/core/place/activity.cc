#include "core/place/activity.h"

#include <algorithm>
#include <cstring>

namespace tfdist {

static_assert(sizeof(Activity) == 128, "an activity is copied word by word");

void Activity::SetTitle(const std::string& text) {
  size_t bytes = std::min(text.size(), kTitleBytes - 1);
  // Not within a character of UTF-8, since errors with half of one are not taken everywhere.
  const auto continues = [&text](size_t i) { return (text[i] & 0xc0) == 0x80; };
  if (bytes < text.size()) {
    while (bytes > 0 && continues(bytes)) --bytes;
  }
  std::memset(title, 0, kTitleBytes);
  std::memcpy(title, text.data(), bytes);
}

// Each word is released after the odd version and acquired before the second look at the version,
// so that a reader of a new word sees that the version has changed.
void ActivitySlot::Publish(const Activity& activity) {
  uint64_t words[kWords];
  std::memcpy(words, &activity, sizeof(words));
  const uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

Activity ActivitySlot::Read() const {
  constexpr int kAttempts = 1000;
  Activity activity;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t before = version_.load(std::memory_order_acquire);
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) continue;
    std::memcpy(&activity, words, sizeof(words));
    activity.title[Activity::kTitleBytes - 1] = '\0';
    break;
  }
  return activity;
}

}  // namespace tfdist
