#include "nccl/completion_thread.h"

#include <chrono>
#include <utility>
#include <vector>

#include "core/wire/wait.h"

namespace tfdist {
namespace {

constexpr std::chrono::seconds kTimeToEmpty(2);

// Looks at an event between two looks at the ranks.
constexpr int kLooksPerCheck = 64;

}  // namespace

CompletionThread::CompletionThread(CudaDriver* driver, int device, const EngineConfig& config,
                                   const Topology& topology, Watch watch)
    : driver_(driver),
      device_(device),
      config_(config),
      topology_(topology),
      watch_(std::move(watch)),
      thread_([this] { Run(); }) {}

CompletionThread::~CompletionThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CompletionThread::Add(CudaEvent event, const std::string& title, const Done& done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({event, title, done});
  }
  changed_.notify_all();
}

void CompletionThread::Finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return entries_.empty() && !tells_; });
}

void CompletionThread::Run() {
  end_ = driver_->Use(device_);
  while (true) {
    Entry entry;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !entries_.empty(); });
      if (entries_.empty()) return;
      entry = std::move(entries_.front());
      entries_.pop_front();
      tells_ = true;
    }
    if (end_.ok()) {
      end_ = WaitFor(entry);
      if (!end_.ok()) {
        watch_.give_up(end_);
        Empty(entry);
      }
    }
    entry.done(end_);
    entry = Entry();  // what it holds is let go before anybody is told that all is over
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tells_ = false;
    }
    changed_.notify_all();
  }
}

// Whoever is told of an error may give the memory of the work to others, so what is still in the
// stream gets time to run out.
void CompletionThread::Empty(const Entry& entry) {
  const auto end = std::chrono::steady_clock::now() + kTimeToEmpty;
  bool happened = false;
  while (!happened && std::chrono::steady_clock::now() < end) {
    if (!driver_->HasHappened(entry.event, &happened).ok()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status CompletionThread::WaitFor(const Entry& entry) {
  Wait wait(config_, topology_, [&entry] { return entry.title + " on the GPU"; });
  wait.Begin();
  for (int looks = 1;; ++looks) {
    bool happened = false;
    TFDIST_RETURN_IF_ERROR(driver_->HasHappened(entry.event, &happened));
    if (happened) return watch_.verdict();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ends_) {
        return Status(StatusCode::kFailedPrecondition,
                      entry.title + " was still on the GPU when tfdist was shut down.");
      }
    }
    if (looks % kLooksPerCheck == 0) TFDIST_RETURN_IF_ERROR(watch_.check());
    TFDIST_RETURN_IF_ERROR(wait.Pause(topology_, Nobody));
  }
}

}  // namespace tfdist
