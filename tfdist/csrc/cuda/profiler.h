// Ranges in what a profiler shows of this process. An interface, so that tests can look on. Thread
// safe.
#ifndef TFDIST_CUDA_PROFILER_H_
#define TFDIST_CUDA_PROFILER_H_

#include <cstdint>
#include <string>

namespace tfdist {

class Profiler {
 public:
  virtual ~Profiler() = default;

  // A range that may end on another thread.
  virtual uint64_t Start(const std::string& name) = 0;
  virtual void End(uint64_t range) = 0;

  // A range of this thread, within the one that it is in.
  virtual void Push(const std::string& name) = 0;
  virtual void Pop() = 0;
};

// A range of this thread, while it is alive. Without a profiler nothing, not even a name.
class ProfilerScope {
 public:
  template <typename Name>
  ProfilerScope(Profiler* profiler, const Name& name) : profiler_(profiler) {
    if (profiler_ != nullptr) profiler_->Push(name());
  }
  ~ProfilerScope() {
    if (profiler_ != nullptr) profiler_->Pop();
  }
  ProfilerScope(const ProfilerScope&) = delete;
  ProfilerScope& operator=(const ProfilerScope&) = delete;

 private:
  Profiler* const profiler_;
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_PROFILER_H_
