// Objects that callers know by a number: positive, and never used again. Thread safe.
#ifndef TFDIST_CORE_AGREE_NUMBERED_H_
#define TFDIST_CORE_AGREE_NUMBERED_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tfdist {

template <typename Object>
class Numbered {
 public:
  // Those of the process. Never destroyed: threads of devices may outlive static objects.
  static Numbered& OfProcess() {
    static Numbered* const objects = new Numbered;
    return *objects;
  }

  std::shared_ptr<Object> New(int64_t* number) {
    std::lock_guard<std::mutex> lock(mutex_);
    *number = ++last_;
    return by_number_[*number] = std::make_shared<Object>();
  }

  // Null if there is none of this number, or it was taken before.
  std::shared_ptr<Object> Find(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_number_.find(number);
    return found == by_number_.end() ? nullptr : found->second;
  }

  // The same; the number means nothing any more.
  std::shared_ptr<Object> Take(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_number_.find(number);
    if (found == by_number_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    by_number_.erase(found);
    return object;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, std::shared_ptr<Object>> by_number_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_NUMBERED_H_
