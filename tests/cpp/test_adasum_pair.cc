// Tables and launches of Adasum's kernels, which a fake GPU does by their definition.
#include <memory>
#include <string>
#include <vector>

#include "core/algorithm/adasum.h"
#include "cuda/adasum_pair.h"
#include "element.h"
#include "expect.h"
#include "fake_cuda_driver.h"

using tfdist::AdasumPair;
using tfdist::AdasumProducts;
using tfdist::AdasumSpan;
using tfdist::CudaStream;
using tfdist::DType;
using tfdist::kAdasumPiece;
using tfdist::Status;

namespace {

class NoCompiler : public tfdist::KernelCompiler {
 public:
  std::string Describe() const override { return "none"; }
  int version() const override { return 1; }
  Status Compile(const std::string& source, const std::string& architecture,
                 std::string* image) override {
    *image = source.size() > 1000 ? "Adasum for " + architecture : "nothing";
    return Status::Ok();
  }
};

std::unique_ptr<AdasumPair> OpenPair(FakeCudaDriver* driver) {
  NoCompiler compiler;
  tfdist::KernelCache cache(&compiler, "");
  tfdist::DeviceFacts facts;
  EXPECT(driver->Describe(0, &facts).ok());
  std::unique_ptr<AdasumPair> pair;
  EXPECT_EQ(AdasumPair::Open(driver, facts, &cache, &pair).message(), "");
  return pair;
}

// Spans of these counts, one behind the other with a gap between.
std::vector<AdasumSpan> SpansOf(const std::vector<int64_t>& counts) {
  std::vector<AdasumSpan> spans;
  int64_t start = 16;
  for (int64_t count : counts) {
    spans.push_back({start, count});
    start += count + 8;
  }
  return spans;
}

Elements Part(DType type, const std::vector<AdasumSpan>& spans, int64_t salt) {
  Elements part(type, spans.back().start + spans.back().count + 8);
  for (int64_t i = 0; i < part.count(); ++i) part.Set(i, static_cast<double>((i * salt) % 23 - 9));
  return part;
}

// Whole numbers, so sums are exact in every order.
void CheckPair(DType type, const std::vector<AdasumSpan>& spans) {
  FakeCudaDriver driver;
  const std::unique_ptr<AdasumPair> pair = OpenPair(&driver);
  Elements a = Part(type, spans, 5), expected = a, b = Part(type, spans, 7);
  std::vector<AdasumProducts> products(spans.size(), {7, 7, 7});
  double* const numbers = reinterpret_cast<double*>(products.data());
  EXPECT(pair->Multiply(type, spans, a.view().data, b.view().data, numbers, nullptr).ok());
  EXPECT(pair->Combine(type, spans, numbers, b.view().data, a.view().data, nullptr).ok());
  EXPECT(driver.Synchronize());
  for (size_t s = 0; s < spans.size(); ++s) {
    const int64_t at = spans[s].start * SizeOf(type);
    char* const of_a = static_cast<char*>(expected.view().data) + at;
    const char* const of_b = static_cast<char*>(b.view().data) + at;
    const AdasumProducts own = MultiplyParts(type, of_a, of_b, spans[s].count);
    EXPECT_EQ(products[s].ab, own.ab);
    EXPECT_EQ(products[s].aa, own.aa);
    EXPECT_EQ(products[s].bb, own.bb);
    CombineParts(type, own, of_b, spans[s].count, of_a);
  }
  EXPECT(a.bytes() == expected.bytes());  // also between the spans
}

}  // namespace

TEST(AdasumPairOfSpansOfEverySize) {
  const std::vector<int64_t> counts = {
      0, 8, kAdasumPiece - 8, kAdasumPiece, kAdasumPiece + 8, 0, 4, 3 * kAdasumPiece, 0};
  for (DType type : {DType::kFloat32, DType::kFloat64}) CheckPair(type, SpansOf(counts));
}

TEST(AdasumPairOfMoreSpansThanOneLaunchTakes) {
  for (size_t spans : {1u, 191u, 192u, 193u, 400u}) {
    CheckPair(DType::kFloat32, SpansOf(std::vector<int64_t>(spans, 8)));
  }
}

TEST(AdasumPairLaunchesAsManyBlocksAsThereAreOrTheDeviceHolds) {
  FakeCudaDriver driver;  // of 4 multiprocessors
  const std::unique_ptr<AdasumPair> pair = OpenPair(&driver);
  EXPECT_EQ(driver.log().back(), "load Adasum for sm_80");
  std::vector<double> products(6);
  for (int64_t pieces : {int64_t{1}, int64_t{40}}) {
    const std::vector<AdasumSpan> spans = {{0, pieces * kAdasumPiece}, {0, 0}};
    Elements a = Part(DType::kFloat32, {spans[0]}, 3), b = a;
    EXPECT(pair->Multiply(DType::kFloat32, spans, a.view().data, b.view().data, products.data(),
                          nullptr)
               .ok());
    EXPECT_EQ(driver.log()[driver.log().size() - 2],
              "launch adasum_products_float32 on stream 0, " +
                  std::to_string(pieces == 1 ? 1 : 32) + " blocks of 256");
    EXPECT_EQ(driver.log().back(), "launch adasum_sum on stream 0, 2 blocks of 256");
    EXPECT(driver.Synchronize());
  }
}

TEST(AdasumPairOfNothingGivesZerosAndCombinesNothing) {
  FakeCudaDriver driver;
  const std::unique_ptr<AdasumPair> pair = OpenPair(&driver);
  std::vector<double> products(6, 7);
  const std::vector<AdasumSpan> spans = {{0, 0}, {0, 0}};
  EXPECT(pair->Multiply(DType::kFloat32, spans, nullptr, nullptr, products.data(), nullptr).ok());
  EXPECT(pair->Combine(DType::kFloat32, spans, products.data(), nullptr, nullptr, nullptr).ok());
  EXPECT_EQ(driver.log().back(), "launch adasum_sum on stream 0, 2 blocks of 256");
  EXPECT(driver.Synchronize());
  EXPECT(products == std::vector<double>(6, 0));
}
