// Timed waits last as long as they say, whatever becomes of the wall clock.
#include <chrono>
#include <mutex>
#include <thread>

#include "core/watch/steady_clock.h"
#include "core/watch/steady_condition.h"
#include "expect.h"
#include "wall_clock.h"

using tfdist::SteadyCondition;
using tfdist::SteadyNs;

namespace {

constexpr int64_t kShortNs = 20'000'000;
constexpr int64_t kLongNs = 60'000'000'000;
constexpr int64_t kBusyNs = 20'000'000'000;  // what a busy machine may add
constexpr int64_t kHour = 3600;

TEST(SteadyConditionWaitsAsLongAsItSays) {
  for (const int64_t seconds : {int64_t{0}, kHour, -kHour}) {
    const MovedWallClock moved(seconds);
    std::mutex mutex;
    SteadyCondition changed;
    std::unique_lock<std::mutex> lock(mutex);
    const int64_t begin = SteadyNs();
    EXPECT(!changed.WaitFor(&lock, kShortNs, [] { return false; }));
    const int64_t waited = SteadyNs() - begin;
    EXPECT(waited >= kShortNs && waited < kShortNs + kBusyNs);
  }
}

TEST(MovedWallClockIsWhatProgramsSee) {
  const auto before = std::chrono::system_clock::now();
  const MovedWallClock moved(kHour);
  EXPECT(std::chrono::system_clock::now() - before >= std::chrono::seconds(kHour));
}

TEST(SteadyConditionEndsWhenNotified) {
  for (const int64_t ns : {kLongNs, INT64_MAX}) {
    std::mutex mutex;
    SteadyCondition changed;
    bool done = false;
    const int64_t begin = SteadyNs();
    std::thread other([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      done = true;
      changed.NotifyAll();
    });
    std::unique_lock<std::mutex> lock(mutex);
    EXPECT(changed.WaitFor(&lock, ns, [&] { return done; }));
    EXPECT(SteadyNs() - begin < kBusyNs);
    lock.unlock();
    other.join();
  }
}

TEST(SteadyConditionDoesNotWaitForWhatIs) {
  std::mutex mutex;
  SteadyCondition changed;
  std::unique_lock<std::mutex> lock(mutex);
  EXPECT(changed.WaitFor(&lock, 0, [] { return true; }));
  EXPECT(!changed.WaitFor(&lock, 0, [] { return false; }));
  EXPECT(!changed.WaitFor(&lock, -1, [] { return false; }));
}

}  // namespace
