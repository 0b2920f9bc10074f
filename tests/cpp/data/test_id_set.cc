// Ids are told apart whatever their order, and close ones take little memory.
#include <cstdint>
#include <random>
#include <set>

#include "data/id_set.h"
#include "expect.h"

using tfdist::IdSet;

TEST(IdSetTellsNewFromOld) {
  IdSet ids;
  for (int64_t id :
       {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{65535}, int64_t{65536}}) {
    EXPECT(ids.Insert(id));
    EXPECT(!ids.Insert(id));
  }
  EXPECT_EQ(ids.size(), 6);
}

TEST(IdSetAgreesWithAStandardSet) {
  std::mt19937_64 random(7);
  IdSet ids;
  std::set<int64_t> expected;
  for (int i = 0; i < 60000; ++i) {
    // Three pages that become bitmaps, and ids far away.
    const auto id = static_cast<int64_t>(i % 10 == 0 ? random() : random() % 200000) - 100000;
    EXPECT_EQ(ids.Insert(id), expected.insert(id).second);
  }
  EXPECT_EQ(ids.size(), static_cast<int64_t>(expected.size()));
}

TEST(IdSetTakesABitForEachOfManyCloseIds) {
  IdSet ids;
  const int64_t count = 1 << 20;
  for (int64_t id = count - 1; id >= 0; --id) EXPECT(ids.Insert(id));
  EXPECT_EQ(ids.size(), count);
  EXPECT_EQ(ids.page_bytes(), count / 8);
}

TEST(IdSetTakesTwoBytesForEachOfFewIds) {
  IdSet ids;
  for (int64_t id = 0; id < 4096; ++id) ids.Insert(id * 16);
  EXPECT_EQ(ids.page_bytes(), 8192);
  EXPECT(ids.Insert(1));  // now a bitmap
  EXPECT_EQ(ids.page_bytes(), 8192);
  EXPECT(!ids.Insert(16));
  EXPECT_EQ(ids.size(), 4097);
}
