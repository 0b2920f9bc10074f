#include "core/engine/pending_call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

namespace tfdist {
namespace {

constexpr size_t kCacheLine = 64;

struct PendingCalls {
  std::mutex mutex;
  int64_t last = 0;
  std::unordered_map<int64_t, std::shared_ptr<PendingCall>> by_number;
};

// Never destroyed: the thread that runs them may outlive static objects.
PendingCalls& TheCalls() {
  static PendingCalls* const calls = new PendingCalls;
  return *calls;
}

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
  PendingCalls& calls = TheCalls();
  std::lock_guard<std::mutex> lock(calls.mutex);
  *number = ++calls.last;
  return calls.by_number[*number] = std::make_shared<PendingCall>();
}

std::shared_ptr<PendingCall> PendingCall::Find(int64_t number) {
  PendingCalls& calls = TheCalls();
  std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.by_number.find(number);
  return found == calls.by_number.end() ? nullptr : found->second;
}

void PendingCall::Forget(int64_t number) {
  std::shared_ptr<PendingCall> forgotten;  // let go outside the lock
  PendingCalls& calls = TheCalls();
  std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.by_number.find(number);
  if (found == calls.by_number.end()) return;
  forgotten = std::move(found->second);
  calls.by_number.erase(found);
}

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
