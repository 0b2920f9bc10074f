// Memory that grows under a stream: nothing is given back while work may still use it.
#include <atomic>
#include <string>

#include "cuda/stream_memory.h"
#include "expect.h"
#include "fake_cuda_driver.h"

using tfdist::StreamMemory;

TEST(StreamMemoryIsTakenOnceAndGivenBackAtTheEnd) {
  FakeCudaDriver driver;
  {
    StreamMemory memory(&driver);
    EXPECT_EQ(memory.data() == nullptr, true);
    EXPECT(memory.Reserve(0, nullptr).ok());
    EXPECT_EQ(driver.allocated_bytes(), 0);
    EXPECT(memory.Reserve(100, nullptr).ok());
    char* const first = memory.data();
    EXPECT(memory.Reserve(40, nullptr).ok());
    EXPECT(memory.data() == first);
    EXPECT_EQ(driver.allocated_bytes(), 100);
  }
  EXPECT_EQ(driver.allocated_bytes(), 0);
}

TEST(StreamMemoryKeepsWhatTheStreamMayStillUse) {
  FakeCudaDriver driver;
  {
    StreamMemory memory(&driver);
    std::atomic<bool> goes_on{false};
    EXPECT(memory.Reserve(100, nullptr).ok());
    driver.Enqueue(nullptr, [&goes_on] { return goes_on.load(); });
    EXPECT(memory.Reserve(1000, nullptr).ok());
    EXPECT(memory.Reserve(2000, nullptr).ok());
    EXPECT_EQ(driver.allocated_bytes(), 100 + 1000 + 2000);
    goes_on = true;
    EXPECT(driver.Synchronize());
    EXPECT(memory.Reserve(1, nullptr).ok());
    EXPECT_EQ(driver.allocated_bytes(), 2000);
    EXPECT_EQ(driver.log().back(), "delete event 2");
  }
  EXPECT_EQ(driver.allocated_bytes(), 0);
}
