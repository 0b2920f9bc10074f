// The sizes of a tensor, and its shape as text.
#include "core/value/tensor_view.h"
#include "expect.h"

using tfdist::DType;
using tfdist::ShapeString;
using tfdist::TensorView;

TEST(TensorViewCountsElementsAndBytes) {
  const TensorView tensor{DType::kFloat16, {5, 3, 4}, nullptr};
  EXPECT_EQ(tensor.count(), 60);
  EXPECT_EQ(tensor.bytes(), 120);
  EXPECT_EQ(tensor.row_bytes(), 24);
}

TEST(TensorViewKnowsTheSizeOfARowWithoutAnyRow) {
  EXPECT_EQ((TensorView{DType::kInt64, {0, 7}, nullptr}).row_bytes(), 56);
  EXPECT_EQ((TensorView{DType::kInt64, {0, 7}, nullptr}).bytes(), 0);
  EXPECT_EQ((TensorView{DType::kFloat32, {9}, nullptr}).row_bytes(), 4);
  EXPECT_EQ((TensorView{DType::kFloat32, {9, 0}, nullptr}).row_bytes(), 0);
}

TEST(TensorViewOfAScalarIsOneElement) {
  const TensorView scalar{DType::kFloat64, {}, nullptr};
  EXPECT_EQ(scalar.count(), 1);
  EXPECT_EQ(scalar.bytes(), 8);
  EXPECT_EQ(scalar.row_bytes(), 8);
}

TEST(TensorViewShapeAsText) {
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(ShapeString({3}), "[3]");
  EXPECT_EQ(ShapeString({3, 0, 12}), "[3,0,12]");
}
