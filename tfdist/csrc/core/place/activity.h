// What a rank did last, in memory where the other ranks of its host read it without its help. Not a
// message: nobody is told.
#ifndef TFDIST_CORE_PLACE_ACTIVITY_H_
#define TFDIST_CORE_PLACE_ACTIVITY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tfdist {

struct Activity {
  enum State : int64_t {
    kUnknown = 0,  // has published nothing
    kIdle = 1,     // has not called a collective
    kInside = 2,
    kFinished = 3,
    kFailed = 4  // left with an error
  };
  static constexpr size_t kTitleBytes = 96;

  int64_t state = kUnknown;
  int64_t call = 0;              // its number among those of its engine, from 1
  int64_t since_ns = 0;          // when the state began, by SteadyNs
  int64_t on_gpu = 0;            // 1: what is finished goes on there
  char title[kTitleBytes] = {};  // "allreduce 'grads' in process set 1"; cut off between
                                 // characters, ends with a zero

  void SetTitle(const std::string& text);
};

// The place of one rank in the shared memory; zeros at first. Its owner writes, by one thread at a
// time; all others read.
class alignas(64) ActivitySlot {
 public:
  void Publish(const Activity& activity);

  // kUnknown where the owner is, or died, in the middle of writing.
  Activity Read() const;

 private:
  static constexpr size_t kWords = sizeof(Activity) / sizeof(uint64_t);

  std::atomic<uint64_t> version_{0};  // odd while the owner writes
  std::atomic<uint64_t> words_[kWords] = {};
};

}  // namespace tfdist

#endif  // TFDIST_CORE_PLACE_ACTIVITY_H_
