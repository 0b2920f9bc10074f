// A collective that a caller of the C functions has started, until that caller forgets it: whether
// and how it has ended, and the memory of results whose shape the ranks determine. Runs nothing.
// Thread safe.
#ifndef TFDIST_CORE_ENGINE_PENDING_CALL_H_
#define TFDIST_CORE_ENGINE_PENDING_CALL_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/watch/steady_condition.h"

namespace tfdist {

// Memory for a result, which begins where a cache line does.
class ResultMemory {
 public:
  // Makes `tensor` the place of a result of this shape.
  static Status Make(DType dtype, const std::vector<int64_t>& shape, ResultMemory* memory);
  static ResultMemory Of(const std::vector<int64_t>& numbers);

  const TensorView& tensor() const { return tensor_; }
  int64_t rows() const { return tensor_.shape.empty() ? 1 : tensor_.shape[0]; }

  // The caller's from now on, who gives it to std::free; null where nothing is in it.
  void* Release() { return bytes_.release(); }

 private:
  struct Free {
    void operator()(void* bytes) const { std::free(bytes); }
  };

  TensorView tensor_;
  std::unique_ptr<void, Free> bytes_;
};

class PendingCall {
 public:
  // A new one, to be found by its number: positive, and never used again.
  static std::shared_ptr<PendingCall> New(int64_t* number);

  // Null if there is none of this number, or it is forgotten.
  static std::shared_ptr<PendingCall> Find(int64_t number);

  // The number means nothing any more; what the call still writes has its memory until it ends.
  static void Forget(int64_t number);

  // Once.
  void End(const Status& status);

  // Whether it has ended, at the latest when `ns` have passed.
  bool WaitFor(int64_t ns);

  // After its end.
  Status status();

  // Written by the call itself, read after its end.
  std::vector<ResultMemory> results;

 private:
  std::mutex mutex_;  // guards all below
  SteadyCondition ended_;
  bool has_ended_ = false;
  Status status_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_PENDING_CALL_H_
