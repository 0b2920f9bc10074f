// A door that threads wait at until one opens it, for tests in which somebody must come later, and
// one that opens when all have come.
#ifndef TESTS_CPP_GATE_H_
#define TESTS_CPP_GATE_H_

#include <condition_variable>
#include <mutex>

class Gate {
 public:
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Any number of times, by the same `size` threads.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int size) : size_(size) {}
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++came_ == size_) {
      came_ = 0;
      ++round_;
      passed_.notify_all();
    }
    passed_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable passed_;
  int came_ = 0;
  int round_ = 0;
};

#endif  // TESTS_CPP_GATE_H_
