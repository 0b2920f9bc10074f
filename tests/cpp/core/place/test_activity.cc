// What a rank shows in shared memory is read whole or not at all.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "core/place/activity.h"
#include "expect.h"

using tfdist::Activity;
using tfdist::ActivitySlot;

namespace {

// All parts of it tell the same number.
Activity Numbered(int64_t number) {
  Activity activity;
  activity.state = Activity::kInside;
  activity.call = number;
  activity.since_ns = -number;
  activity.SetTitle(std::string(90, static_cast<char>('a' + number % 26)));
  return activity;
}

}  // namespace

TEST(ActivityOfZerosIsUnknown) {
  const auto slot = std::make_unique<ActivitySlot>();
  EXPECT_EQ(slot->Read().state, Activity::kUnknown);
  EXPECT_EQ(std::string(slot->Read().title), "");
}

TEST(ActivityIsReadAsItWasPublished) {
  const auto slot = std::make_unique<ActivitySlot>();
  slot->Publish(Numbered(5));
  slot->Publish(Numbered(7));
  const Activity read = slot->Read();
  EXPECT_EQ(read.state, Activity::kInside);
  EXPECT_EQ(read.call, 7);
  EXPECT_EQ(read.since_ns, -7);
  EXPECT_EQ(std::string(read.title), std::string(90, 'h'));
}

TEST(ActivityCutsALongTitle) {
  Activity activity;
  activity.SetTitle(std::string(1000, 'x'));
  EXPECT_EQ(std::string(activity.title), std::string(Activity::kTitleBytes - 1, 'x'));
  std::string euros;
  for (int i = 0; i < 100; ++i) euros += "\xe2\x82\xac";
  activity.SetTitle("a" + euros);  // the cut would be within the 32nd
  EXPECT_EQ(std::string(activity.title), ("a" + euros).substr(0, 1 + 31 * 3));
  activity.SetTitle("y");
  EXPECT_EQ(std::string(activity.title), "y");
}

TEST(ActivityIsNeverReadHalfWritten) {
  const auto slot = std::make_unique<ActivitySlot>();
  std::atomic<bool> done{false};
  std::thread owner([&] {
    for (int64_t number = 1; number <= 20'000; ++number) slot->Publish(Numbered(number));
    done = true;
  });
  int64_t last = 0;
  while (!done) {
    const Activity read = slot->Read();
    if (read.state == Activity::kUnknown) continue;
    const Activity expected = Numbered(read.call);
    EXPECT_EQ(read.since_ns, expected.since_ns);
    EXPECT_EQ(std::string(read.title), std::string(expected.title));
    EXPECT(read.call >= last);
    last = read.call;
  }
  owner.join();
  EXPECT_EQ(slot->Read().call, 20'000);
}
