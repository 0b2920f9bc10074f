// The buffer: growth, alignment, refusal.
#include <cstdint>

#include "core/algorithm/fusion_buffer.h"
#include "expect.h"

using tfdist::FusionBuffer;

TEST(FusionBufferGrowsAlignedAndNeverShrinks) {
  FusionBuffer buffer;
  EXPECT_EQ(buffer.capacity_bytes(), 0);
  EXPECT(buffer.Reserve(0).ok());
  for (int64_t bytes : {1, 64, 65, 1000, 10}) {
    EXPECT(buffer.Reserve(bytes).ok());
    EXPECT(buffer.capacity_bytes() >= bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  }
  EXPECT_EQ(buffer.capacity_bytes(), 1024);
}

// A sanitizer's allocator ends the process on such a request instead of returning null.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(FusionBufferOfTooManyBytesIsAnErrorAndNotACrash) {
  FusionBuffer buffer;
  const tfdist::Status status = buffer.Reserve(int64_t{1} << 60);
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(tfdist::StatusCode::kInternal));
  EXPECT_CONTAINS(status.message(), "Lower the fusion threshold");
  EXPECT(buffer.Reserve(100).ok());
}
#endif
