#include "core/engine/pending_call.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/agree/numbered.h"

namespace tfdist {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

Status ResultMemory::Make(DType dtype, const std::vector<int64_t>& shape, ResultMemory* memory) {
  memory->tensor_ = TensorView{dtype, shape, nullptr};
  const size_t bytes = static_cast<size_t>(memory->tensor_.bytes());
  if (bytes == 0) return Status::Ok();
  const size_t whole = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  memory->bytes_.reset(std::aligned_alloc(kCacheLine, whole));
  memory->tensor_.data = memory->bytes_.get();
  if (memory->tensor_.data != nullptr) return Status::Ok();
  return Status(StatusCode::kResourceExhausted,
                "no memory for a result of " + std::to_string(bytes) + " bytes.");
}

ResultMemory ResultMemory::Of(const std::vector<int64_t>& numbers) {
  ResultMemory memory;
  const int64_t count = static_cast<int64_t>(numbers.size());
  if (!Make(DType::kInt64, {count}, &memory).ok()) throw std::bad_alloc();
  std::copy(numbers.begin(), numbers.end(), static_cast<int64_t*>(memory.tensor_.data));
  return memory;
}

std::shared_ptr<PendingCall> PendingCall::New(int64_t* number) {
  return Numbered<PendingCall>::OfProcess().New(number);
}

std::shared_ptr<PendingCall> PendingCall::Find(int64_t number) {
  return Numbered<PendingCall>::OfProcess().Find(number);
}

void PendingCall::Forget(int64_t number) { Numbered<PendingCall>::OfProcess().Take(number); }

void PendingCall::End(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
    status_ = status;
  }
  ended_.NotifyAll();
}

bool PendingCall::WaitFor(int64_t ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.WaitFor(&lock, ns, [this] { return has_ended_; });
}

Status PendingCall::status() {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

}  // namespace tfdist
