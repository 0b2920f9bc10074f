// What was read is counted by pass and by name, from any thread.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data/watch.h"
#include "expect.h"

using tfdist::PassReading;
using tfdist::ServiceNote;
using tfdist::SetServiceNote;
using tfdist::Watch;
using tfdist::WatchReading;

TEST(WatchOfANameIsOne) {
  EXPECT(Watch::Find("watch of a name") == nullptr);
  const auto watch = Watch::Named("watch of a name");
  EXPECT(Watch::Named("watch of a name") == watch);
  EXPECT(Watch::Find("watch of a name") == watch);
  EXPECT(Watch::Named("another") != watch);
}

TEST(WatchCountsAPass) {
  Watch watch;
  EXPECT_EQ(watch.Read(0).newest.number, 0);
  const auto pass = watch.BeginPass();
  const std::vector<int64_t> ids = {5, 6, 5};
  watch.AddElement(pass.get(), ids.data(), 3);
  watch.AddElement(pass.get(), ids.data(), 1);
  WatchReading reading = watch.Read(0);
  EXPECT_EQ(reading.elements, 2);
  EXPECT_EQ(reading.newest.elements, 2);
  EXPECT_EQ(reading.newest.ids, 4);
  EXPECT_EQ(reading.newest.distinct_ids, 2);
  EXPECT(!reading.newest.ended);
  EXPECT_EQ(reading.newest_ended.number, 0);
  watch.EndPass(pass);
  reading = watch.Read(0);
  EXPECT(reading.newest.ended);
  EXPECT_EQ(reading.newest_ended.number, 1);
  EXPECT_EQ(reading.newest_ended.distinct_ids, 2);
}

TEST(WatchKeepsPassesApart) {
  Watch watch;
  const auto first = watch.BeginPass();
  const auto second = watch.BeginPass();
  watch.AddElement(first.get(), nullptr, 0);
  watch.AddElement(second.get(), nullptr, 0);
  watch.AddElement(second.get(), nullptr, 0);
  watch.EndPass(first);
  const WatchReading reading = watch.Read(0);
  EXPECT_EQ(reading.elements, 3);
  EXPECT_EQ(reading.newest.number, 2);
  EXPECT_EQ(reading.newest.elements, 2);
  EXPECT_EQ(reading.newest_ended.number, 1);
  EXPECT_EQ(reading.newest_ended.elements, 1);
}

TEST(WatchCountsWaitsThatGoOn) {
  Watch watch;
  watch.BeginWait(100);
  EXPECT_EQ(watch.Read(90).waited_ns, 0);  // the clock was read before the wait began
  EXPECT_EQ(watch.Read(130).waited_ns, 30);
  watch.BeginWait(120);
  EXPECT_EQ(watch.Read(130).waited_ns, 40);
  EXPECT_EQ(watch.Read(130).longest_wait_ns, 0);
  watch.EndWait(100, 150);
  EXPECT_EQ(watch.Read(150).waited_ns, 80);
  EXPECT_EQ(watch.Read(150).longest_wait_ns, 50);
  watch.EndWait(120, 160);
  EXPECT_EQ(watch.Read(1000).waited_ns, 90);
  EXPECT_EQ(watch.Read(1000).longest_wait_ns, 50);
  EXPECT_EQ(watch.Read(1000).elements, 0);
}

TEST(WatchCountsFromManyThreads) {
  Watch watch;
  std::vector<std::thread> threads;
  for (int64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&watch, number] {
      const auto pass = watch.BeginPass();
      for (int64_t id = 0; id < 1000 * (number + 1); ++id) {
        watch.BeginWait(id);
        watch.EndWait(id, id + 1);
        watch.AddElement(pass.get(), &id, 1);
      }
      watch.EndPass(pass);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(watch.Read(0).elements, 10000);
  EXPECT_EQ(watch.Read(1).waited_ns, 10000);
}

TEST(ServiceNotesAreSetAndTakenBack) {
  EXPECT_EQ(ServiceNote("host:1"), "");
  SetServiceNote("host:1", "worker host:2 is dead.");
  EXPECT_EQ(ServiceNote("host:1"), "worker host:2 is dead.");
  EXPECT_EQ(ServiceNote("host:3"), "");
  SetServiceNote("host:1", "");
  EXPECT_EQ(ServiceNote("host:1"), "");
}
