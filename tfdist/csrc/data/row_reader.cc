#include "data/row_reader.h"

#include <utility>

namespace tfdist {
namespace {

void GiveUp(RowRead* read) {
  read->Fail(
      Status(StatusCode::kFailedPrecondition,
             "this process has no running row reader. A data service worker must be "
             "started by tfdist (tfdist.data_service.Worker) and must not be shutting down."));
  read->Finish();
}

}  // namespace

RowReader& RowReader::OfProcess() {
  static RowReader* const reader = new RowReader();
  return *reader;
}

RowReader::~RowReader() {
  Close(0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void RowReader::Open(Function function, int threads) {
  std::lock_guard<std::mutex> lock(mutex_);
  function_ = function;
  most_threads_ = threads;
}

bool RowReader::Close(double seconds) {
  std::deque<std::shared_ptr<RowRead>> left;
  std::unique_lock<std::mutex> lock(mutex_);
  function_ = nullptr;
  left.swap(waiting_);
  lock.unlock();
  for (const auto& read : left) GiveUp(read.get());
  lock.lock();
  const auto ns = static_cast<int64_t>(seconds * 1e9);
  return changed_.WaitFor(&lock, ns, [this] { return running_ == 0; });
}

void RowReader::Submit(std::shared_ptr<RowRead> read) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (function_ != nullptr) {
      waiting_.push_back(std::move(read));
      const int busy = running_ + static_cast<int>(waiting_.size());
      const int started = static_cast<int>(threads_.size());
      if (busy > started && started < most_threads_) threads_.emplace_back([this] { Run(); });
    }
  }
  if (read != nullptr) {
    GiveUp(read.get());
  } else {
    changed_.NotifyAll();
  }
}

void RowReader::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (!ends_ && waiting_.empty()) changed_.Wait(&lock);
    if (waiting_.empty()) return;
    std::shared_ptr<RowRead> read = std::move(waiting_.front());
    waiting_.pop_front();
    const Function function = function_;
    ++running_;
    lock.unlock();
    if (read->wanted()) {
      function(read.get(), read->request().data(), static_cast<int64_t>(read->request().size()));
    }
    read->Finish();
    read.reset();
    lock.lock();
    --running_;
    changed_.NotifyAll();
  }
}

}  // namespace tfdist
