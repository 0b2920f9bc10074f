// A wait that is too long is ended once; others are left alone.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "core/watch/steady_clock.h"
#include "data/watchdog.h"
#include "expect.h"

using std::chrono::milliseconds;
using tfdist::SteadyNs;
using tfdist::Waiter;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// A waiter that tells when it is expired.
struct Told {
  explicit Told(milliseconds limit) : waiter(limit, [this] { told.set_value(SteadyNs()); }) {}

  std::promise<int64_t> told;
  std::future<int64_t> at = told.get_future();
  Waiter waiter;
};

}  // namespace

TEST(WatchdogEndsAWaitThatIsTooLong) {
  Told told(milliseconds(30));
  const int64_t start = SteadyNs();
  told.waiter.Begin(start);
  EXPECT(told.at.wait_for(kPatience) == std::future_status::ready);
  EXPECT(told.at.get() - start >= 30 * 1000 * 1000);
  EXPECT(told.waiter.expired());
}

TEST(WatchdogKnowsALimitThatIsShorterThanTheOneItSleepsFor) {
  Told patient(std::chrono::hours(1));
  patient.waiter.Begin(SteadyNs());
  Told told(milliseconds(20));
  told.waiter.Begin(SteadyNs());
  EXPECT(told.at.wait_for(kPatience) == std::future_status::ready);
  EXPECT(!patient.waiter.expired());
}

TEST(WatchdogLeavesAloneWhoDoesNotWait) {
  Told idle(milliseconds(5));
  // A later one expires, so the watchdog has looked at the first by then.
  Told told(milliseconds(60));
  told.waiter.Begin(SteadyNs());
  EXPECT(told.at.wait_for(kPatience) == std::future_status::ready);
  EXPECT(!idle.waiter.expired());
  idle.waiter.Begin(SteadyNs());
  EXPECT(idle.at.wait_for(kPatience) == std::future_status::ready);
}

TEST(WatchdogForgetsWhoIsGone) {
  std::atomic<int> expired{0};
  for (int i = 0; i < 50; ++i) {
    auto waiter = std::make_unique<Waiter>(milliseconds(1), [&expired] { ++expired; });
    waiter->Begin(SteadyNs());
    waiter.reset();
  }
  const int before = expired;  // some may have been due in time
  Told told(milliseconds(20));
  told.waiter.Begin(SteadyNs());
  EXPECT(told.at.wait_for(kPatience) == std::future_status::ready);
  EXPECT_EQ(expired.load(), before);
}

TEST(WatchdogExpiresAWaiterOnce) {
  std::atomic<int> expired{0};
  Waiter waiter(milliseconds(1), [&expired] { ++expired; });
  waiter.Begin(SteadyNs());
  for (int i = 0; i < 3; ++i) {
    Told told(milliseconds(10));
    told.waiter.Begin(SteadyNs());
    EXPECT(told.at.wait_for(kPatience) == std::future_status::ready);
    waiter.Begin(SteadyNs());
  }
  EXPECT_EQ(expired.load(), 1);
}
