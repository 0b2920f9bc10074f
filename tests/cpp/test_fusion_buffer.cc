// The buffer and the passes in and out of it.
#include <cstdint>
#include <vector>

#include "core/fusion_buffer.h"
#include "core/half.h"
#include "element.h"
#include "expect.h"

using tfdist::CastScaled;
using tfdist::DType;
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

TEST(CastScaledScalesInTheWiderType) {
  // 0.1 in double, not in float, for a double that came over a 16-bit wire.
  const uint16_t half = tfdist::FloatToHalf(3.0f);
  double wide = 0;
  CastScaled(DType::kFloat16, &half, 1, 0.1, DType::kFloat64, &wide);
  EXPECT_EQ(wide, 3.0 * 0.1);
  float single = 0;
  CastScaled(DType::kFloat16, &half, 1, 0.1, DType::kFloat32, &single);
  EXPECT_EQ(single, 3.0f * 0.1f);
  // The product 1e300 * 1e-300 must be formed before it becomes a float.
  const double large = 1e300;
  uint16_t one = 0;
  CastScaled(DType::kFloat64, &large, 1, 1e-300, DType::kBfloat16, &one);
  EXPECT_EQ(tfdist::Bfloat16ToFloat(one), 1.0f);
}

TEST(CastScaledOfEveryPairOfFloatingTypesAndLength) {
  const DType types[] = {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};
  for (DType tensor : types) {
    for (DType wire : {tensor, DType::kFloat16, DType::kBfloat16}) {
      const bool narrow = tensor == DType::kFloat16 || tensor == DType::kBfloat16;
      if (narrow && wire != tensor) continue;  // a 16-bit tensor is its own wire type
      for (int64_t count : {0, 1, 7, 2047, 2048, 2049, 5000}) {
        Elements source(tensor, count);
        Elements packed(wire, count);
        Elements result(tensor, count);
        for (int64_t i = 0; i < count; ++i) source.Set(i, static_cast<double>(i % 100));
        tfdist::Pack(source.view(), wire, 0.5, static_cast<char*>(packed.view().data));
        tfdist::Unpack(packed.bytes().data(), wire, 4.0, result.view());
        for (int64_t i = 0; i < count; ++i) EXPECT_EQ(result.Get(i), 2.0 * (i % 100));
      }
    }
  }
}
