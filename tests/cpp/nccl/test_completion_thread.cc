// What waits for a GPU is told once, in order, and never waits for ever.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "expect.h"
#include "fake_cuda_driver.h"
#include "nccl/completion_thread.h"
#include "rank_team.h"

using tfdist::CompletionThread;
using tfdist::CudaEvent;
using tfdist::EngineConfig;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// Ranks that are well; counts how often they are given up.
CompletionThread::Watch Well(std::atomic<int>* given_up) {
  const auto well = [] { return Status::Ok(); };
  return {well, well, [given_up](const Status&) { ++*given_up; }};
}

const tfdist::Topology& OneRank() {
  static const tfdist::Topology topology = tfdist::MakeTopology(0, {0}, {"localhost"});
  return topology;
}

// Statuses in the order in which they came.
class Told {
 public:
  CompletionThread::Done Teller(int number) {
    return [this, number](const Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      numbers_.push_back(number);
      statuses_.push_back(status);
      changed_.notify_all();
    };
  }

  // Waits for so many; false after ten seconds.
  bool Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10),
                             [&] { return statuses_.size() >= count; });
  }

  std::vector<int> numbers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return numbers_;
  }
  Status status(size_t index) {
    std::lock_guard<std::mutex> lock(mutex_);
    return statuses_.at(index);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> numbers_;
  std::vector<Status> statuses_;
};

// Events of a GPU whose stream 0 does nothing until it is let go.
struct Gpu {
  std::atomic<bool> goes{false};
  FakeCudaDriver driver;

  CudaEvent Recorded() {
    CudaEvent event;
    EXPECT(driver.NewEvent(&event).ok());
    EXPECT(driver.Record(event, nullptr).ok());
    return event;
  }
  void Hold() {
    driver.Enqueue(nullptr, [this] { return goes.load(); });
  }
};

}  // namespace

TEST(CompletionsComeInOrderOnceTheirEventsHaveHappened) {
  Gpu gpu;
  Told told;
  gpu.Hold();
  const EngineConfig config = TestConfig();
  std::atomic<int> given_up{0};
  CompletionThread thread(&gpu.driver, 0, config, OneRank(), Well(&given_up));
  for (int i = 0; i < 100; ++i) thread.Add(gpu.Recorded(), "allreduce 'g'", told.Teller(i));
  EXPECT_EQ(told.numbers().size(), size_t{0});
  gpu.goes = true;
  EXPECT(told.Await(100));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(told.numbers()[i], i);
    EXPECT(told.status(i).ok());
  }
  EXPECT_EQ(given_up.load(), 0);
}

TEST(CompletionsFailWhenARankIsLostAndSoDoAllThatFollow) {
  Gpu gpu;
  Told told;
  gpu.Hold();
  const EngineConfig config = TestConfig();
  std::vector<std::string> reasons;
  CompletionThread::Watch watch;
  watch.check = [] { return Status(StatusCode::kUnavailable, "rank 1 is lost"); };
  watch.verdict = [] { return Status::Ok(); };
  watch.give_up = [&](const Status& why) { reasons.push_back(why.message()); };
  CompletionThread thread(&gpu.driver, 0, config, OneRank(), watch);
  thread.Add(gpu.Recorded(), "one", told.Teller(1));
  EXPECT(told.Await(1));
  gpu.goes = true;
  EXPECT(gpu.driver.Synchronize());
  thread.Add(gpu.Recorded(), "two", told.Teller(2));
  EXPECT(told.Await(2));
  for (size_t i : {0u, 1u}) EXPECT_EQ(told.status(i).message(), "rank 1 is lost");
  EXPECT_EQ(reasons.size(), size_t{1});
  EXPECT_EQ(reasons[0], "rank 1 is lost");
}

TEST(CompletionsFailAtTheDeadline) {
  Gpu gpu;
  Told told;
  gpu.Hold();
  EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0;
  config.stall_shutdown_seconds = 0.2;
  std::atomic<int> given_up{0};
  CompletionThread thread(&gpu.driver, 0, config, OneRank(), Well(&given_up));
  thread.Add(gpu.Recorded(), "allreduce 'g'", told.Teller(1));
  EXPECT(told.Await(1));
  EXPECT_EQ(CodeOf(told.status(0)), static_cast<int>(StatusCode::kDeadlineExceeded));
  EXPECT_CONTAINS(told.status(0).message(), "allreduce 'g' on the GPU");
  EXPECT_EQ(given_up.load(), 1);
  gpu.goes = true;
}

TEST(CompletionsThatStillWaitAtTheEndAreTold) {
  Gpu gpu;
  Told told;
  gpu.Hold();
  const EngineConfig config = TestConfig();
  {
    std::atomic<int> given_up{0};
    CompletionThread thread(&gpu.driver, 0, config, OneRank(), Well(&given_up));
    for (int i = 0; i < 3; ++i) thread.Add(gpu.Recorded(), "allreduce 'g'", told.Teller(i));
  }
  EXPECT(told.Await(3));
  for (size_t i = 0; i < 3; ++i) EXPECT_CONTAINS(told.status(i).message(), "was shut down");
  gpu.goes = true;
}
