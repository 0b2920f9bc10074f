// The data service's C functions hand out each number in its field.
#include "data/data_api.h"
#include "data/serving.h"
#include "data/watch.h"
#include "expect.h"

using tfdist::Serving;
using tfdist::Watch;

TEST(DataApiReadsNothingWhereNothingWasRead) {
  tfdist_watch reading = {7, 7, 7, {7, 7, 7, 7, 7, 7}, {7, 7, 7, 7, 7, 7}};
  tfdist_read_watch("data api nothing", &reading);
  EXPECT_EQ(reading.elements + reading.waited_ns + reading.longest_wait_ns, 0);
  EXPECT_EQ(reading.newest.number + reading.newest_ended.ended, 0);
}

TEST(DataApiReadsAWatch) {
  const auto watch = Watch::Named("data api");
  const auto pass = watch->BeginPass();
  const int64_t ids[] = {1, 2, 3, 3};
  watch->AddElement(pass.get(), ids, 4);
  watch->AddElement(pass.get(), ids, 1);
  watch->EndPass(pass);
  watch->AddElement(watch->BeginPass().get(), nullptr, 0);
  watch->BeginWait(5);
  watch->EndWait(5, 13);
  watch->BeginWait(20);
  watch->EndWait(20, 26);
  tfdist_watch reading;
  tfdist_read_watch("data api", &reading);
  EXPECT_EQ(reading.elements, 3);
  EXPECT_EQ(reading.waited_ns, 14);
  EXPECT_EQ(reading.longest_wait_ns, 8);
  EXPECT_EQ(reading.newest.number, 2);
  EXPECT_EQ(reading.newest.elements, 1);
  EXPECT_EQ(reading.newest.ended, 0);
  EXPECT_EQ(reading.newest_ended.number, 1);
  EXPECT_EQ(reading.newest_ended.elements, 2);
  EXPECT_EQ(reading.newest_ended.ids, 5);
  EXPECT_EQ(reading.newest_ended.distinct_ids, 3);
  EXPECT(reading.newest_ended.id_bytes >= 6);
  EXPECT_EQ(reading.newest_ended.ended, 1);
}

TEST(DataApiReadsWhatIsServed) {
  Serving& serving = Serving::Get();
  serving.elements = 1;
  serving.bytes = 2;
  serving.busy_ns = 3;
  serving.splits = 4;
  serving.open_iterators = 5;
  serving.ended_iterators = 6;
  serving.waiting_iterators = 7;
  tfdist_set_draining(2);
  tfdist_serving reading;
  tfdist_read_serving(&reading);
  EXPECT_EQ(reading.elements, 1);
  EXPECT_EQ(reading.bytes, 2);
  EXPECT_EQ(reading.busy_ns, 3);
  EXPECT_EQ(reading.splits, 4);
  EXPECT_EQ(reading.open_iterators, 5);
  EXPECT_EQ(reading.ended_iterators, 6);
  EXPECT_EQ(reading.waiting_iterators, 7);
  EXPECT_EQ(reading.draining, 1);
  tfdist_set_draining(0);
  EXPECT(!serving.draining);
}

TEST(DataApiSetsANote) {
  tfdist_set_service_note("data api:1", "a note");
  EXPECT_EQ(tfdist::ServiceNote("data api:1"), "a note");
}
