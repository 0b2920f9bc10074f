// Tensors as one run of elements: where reads and writes go, at and across their borders.
#include <numeric>

#include "core/algorithm/fused_view.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::Conversion;
using tfdist::DType;
using tfdist::FusedView;

namespace {

// 0, 1, 2, ... over tensors of these sizes.
struct Tensors {
  explicit Tensors(const std::vector<size_t>& counts) {
    float next = 0;
    for (size_t count : counts) {
      values.emplace_back(count);
      std::iota(values.back().begin(), values.back().end(), next);
      next += static_cast<float>(count);
    }
  }

  FusedView View(const Conversion& conversion) {
    FusedView view(conversion);
    for (auto& tensor : values) view.Add(ViewOf(&tensor));
    return view;
  }

  std::vector<std::vector<float>> values;
};

const char* AddressOf(const std::vector<float>& values, size_t index) {
  return reinterpret_cast<const char*>(&values[index]);
}

}  // namespace

TEST(FusedViewReadsWhereNothingChangesWithoutACopy) {
  Tensors tensors({3, 0, 5});
  const FusedView view = tensors.View({});
  EXPECT_EQ(view.count(), 8);
  char buffer[64];
  EXPECT_EQ(view.Read(0, 3, buffer), AddressOf(tensors.values[0], 0));
  EXPECT_EQ(view.Read(4, 4, buffer), AddressOf(tensors.values[2], 1));
  EXPECT_EQ(view.Read(2, 2, buffer), static_cast<const char*>(buffer));
  EXPECT_EQ(reinterpret_cast<float*>(buffer)[0], 2.0f);
  EXPECT_EQ(reinterpret_cast<float*>(buffer)[1], 3.0f);
  EXPECT(view.Memory() == nullptr);
}

TEST(FusedViewOfOneTensorHasMemoryUnlessItChanges) {
  Tensors tensors({4});
  EXPECT_EQ(static_cast<const char*>(tensors.View({}).Memory()), AddressOf(tensors.values[0], 0));
  Conversion scaled;
  scaled.pack = 2;
  EXPECT(tensors.View(scaled).Memory() == nullptr);
  Conversion narrow;
  narrow.wire = DType::kFloat16;
  EXPECT(tensors.View(narrow).Memory() == nullptr);
  Conversion nothing;
  nothing.counts = false;
  EXPECT(tensors.View(nothing).Memory() == nullptr);
  EXPECT(Tensors({}).View({}).Memory() == nullptr);
}

TEST(FusedViewCopiesEveryRangeScaled) {
  Tensors tensors({3, 1, 5});
  Conversion scaled;
  scaled.pack = 0.5;
  const FusedView view = tensors.View(scaled);
  for (int64_t begin = 0; begin <= 9; ++begin) {
    for (int64_t count = 0; begin + count <= 9; ++count) {
      std::vector<float> copy(static_cast<size_t>(count));
      view.Copy(begin, count, reinterpret_cast<char*>(copy.data()));
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(copy[i], 0.5f * static_cast<float>(begin + i));
    }
  }
}

TEST(FusedViewOfARankThatDoesNotCountReadsZeros) {
  Tensors tensors({3, 3});
  Conversion nothing;
  nothing.counts = false;
  std::vector<float> copy(6, 1.0f);
  tensors.View(nothing).Copy(0, 6, reinterpret_cast<char*>(copy.data()));
  for (float value : copy) EXPECT_EQ(value, 0.0f);
}

TEST(FusedViewWritesEveryRangeAndNothingElse) {
  for (int64_t begin = 0; begin <= 9; ++begin) {
    for (int64_t count = 0; begin + count <= 9; ++count) {
      Tensors tensors({3, 1, 5});
      Conversion scaled;
      scaled.unpack = 2;
      const std::vector<float> source(static_cast<size_t>(count), 50.0f);
      tensors.View(scaled).Write(begin, count, reinterpret_cast<const char*>(source.data()));
      std::vector<float> all(9);
      tensors.View({}).Copy(0, 9, reinterpret_cast<char*>(all.data()));
      for (int64_t i = 0; i < 9; ++i) {
        const bool written = i >= begin && i < begin + count;
        EXPECT_EQ(all[i], written ? 100.0f : static_cast<float>(i));
      }
    }
  }
}
