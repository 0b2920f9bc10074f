// The end of a started call comes to whoever waits for it, in whatever order the two come.
#include <string>
#include <thread>
#include <vector>

#include "core/agree/started_call.h"
#include "expect.h"

using tfdist::StartedCall;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

struct Waiter {
  StartedCall::Ended Take() {
    return [this](const Status& status) { told.push_back(status.message()); };
  }
  std::vector<std::string> told;
};

}  // namespace

TEST(StartedCallTellsWhoWaitedBeforeItEnded) {
  int64_t number = 0;
  const auto call = StartedCall::New(&number);
  Waiter waiter;
  call->WhenEnded(waiter.Take());
  EXPECT(waiter.told.empty());
  call->End(Status(StatusCode::kUnavailable, "rank 1 is lost"));
  EXPECT_EQ(waiter.told.size(), 1u);
  EXPECT_EQ(waiter.told.at(0), "rank 1 is lost");
}

TEST(StartedCallKnowsHowLongItWasWaitedFor) {
  int64_t number = 0;
  const auto waited = StartedCall::New(&number);
  const auto ended = StartedCall::New(&number);
  Waiter waiter;
  waited->WhenEnded(waiter.Take());
  EXPECT_EQ(waited->waited_ns(), 0);
  waited->End(Status::Ok());
  EXPECT(waited->waited_ns() > 0);
  ended->End(Status::Ok());
  ended->WhenEnded(waiter.Take());
  EXPECT_EQ(ended->waited_ns(), 0);
}

TEST(StartedCallTellsWhoComesAfterItHasEnded) {
  int64_t number = 0;
  const auto call = StartedCall::New(&number);
  call->End(Status::Ok());
  Waiter waiter;
  call->WhenEnded(waiter.Take());
  EXPECT_EQ(waiter.told.size(), 1u);
  EXPECT_EQ(waiter.told.at(0), "");
}

TEST(StartedCallIsTakenOnceByItsNumber) {
  int64_t first = 0, second = 0;
  const auto call = StartedCall::New(&first);
  const auto other = StartedCall::New(&second);
  EXPECT(first > 0 && second > first);
  EXPECT(StartedCall::Take(second) == other);
  EXPECT(StartedCall::Take(first) == call);
  EXPECT(StartedCall::Take(first) == nullptr);
  EXPECT(StartedCall::Take(0) == nullptr);
}

TEST(StartedCallIsToldOnceWhenBothComeAtOnce) {
  for (int i = 0; i < 200; ++i) {
    int64_t number = 0;
    const auto call = StartedCall::New(&number);
    Waiter waiter;
    std::thread ends([&] { call->End(Status::Ok()); });
    call->WhenEnded(waiter.Take());
    ends.join();
    EXPECT_EQ(waiter.told.size(), 1u);
  }
}
