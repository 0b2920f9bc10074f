// Casts between element types: where they are scaled and rounded, at every length.
#include <cstdint>

#include "core/value/cast.h"
#include "core/value/float_span.h"
#include "element.h"
#include "expect.h"

using tfdist::CastScaled;
using tfdist::DType;

TEST(CastScaledScalesInTheWiderType) {
  // 0.1 in double, not in float, for a double that came over a 16-bit wire.
  const uint16_t half = tfdist::HalfFormat::FromFloat(3.0f);
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
  EXPECT_EQ(tfdist::Bfloat16Format::ToFloat(one), 1.0f);
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
        CastScaled(tensor, source.view().data, count, 0.5, wire, packed.view().data);
        CastScaled(wire, packed.view().data, count, 4.0, tensor, result.view().data);
        for (int64_t i = 0; i < count; ++i) EXPECT_EQ(result.Get(i), 2.0 * (i % 100));
      }
    }
  }
}
