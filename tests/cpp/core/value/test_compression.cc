// The table of compressions: names, types on the wire, and what is not in it.
#include "core/value/compression.h"
#include "expect.h"

namespace tfdist {
namespace {

TEST(CompressionsAreFoundByName) {
  Compression found = Compression::kNone;
  for (Compression compression : {Compression::kFp16, Compression::kBf16, Compression::kNone}) {
    EXPECT(FindCompression(NameOf(compression), &found));
    EXPECT(found == compression);
    EXPECT(IsKnown(compression));
  }
  EXPECT(!FindCompression("fp15", &found));
  EXPECT(found == Compression::kNone);
  EXPECT(!IsKnown(static_cast<Compression>(3)));
  EXPECT(!IsKnown(static_cast<Compression>(-1)));
  EXPECT_EQ(DescribeCompressions(), "none=,fp16=float16,bf16=bfloat16");
}

TEST(CompressionAppliesToFloat32AndFloat64) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    EXPECT(WireType(dtype, Compression::kNone) == dtype);
    EXPECT(WireType(dtype, Compression::kFp16) == DType::kFloat16);
    EXPECT(WireType(dtype, Compression::kBf16) == DType::kBfloat16);
  }
  for (DType dtype : {DType::kBool, DType::kInt32, DType::kFloat16, DType::kBfloat16}) {
    EXPECT(WireType(dtype, Compression::kFp16) == dtype);
  }
}

TEST(NarrowTypesAccumulateInFloat32) {
  EXPECT(IsNarrow(DType::kFloat16) && IsNarrow(DType::kBfloat16));
  EXPECT(!IsNarrow(DType::kFloat32) && !IsNarrow(DType::kInt16) && !IsNarrow(DType::kBool));
}

}  // namespace
}  // namespace tfdist
