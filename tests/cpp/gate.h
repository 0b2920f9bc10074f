// A door that threads wait at until one opens it, for tests in which somebody must come later.
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

#endif  // TESTS_CPP_GATE_H_
