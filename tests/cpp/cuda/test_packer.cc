// Tables and launches of the packer, with kernels that a fake GPU does by their definition.
#include <memory>
#include <string>
#include <vector>

#include "core/value/cast.h"
#include "cuda/packer.h"
#include "element.h"
#include "expect.h"
#include "fake_cuda_driver.h"

using tfdist::DType;
using tfdist::Packer;
using tfdist::Status;
using tfdist::TensorView;

namespace {

class NoCompiler : public tfdist::KernelCompiler {
 public:
  std::string Describe() const override { return "none"; }
  int version() const override { return 1; }
  Status Compile(const std::string&, const std::string& architecture, std::string* image) override {
    *image = "kernels for " + architecture;
    return Status::Ok();
  }
};

std::unique_ptr<Packer> OpenPacker(FakeCudaDriver* driver) {
  NoCompiler compiler;
  tfdist::KernelCache cache(&compiler, "");
  tfdist::DeviceFacts facts;
  EXPECT(driver->Describe(0, &facts).ok());
  std::unique_ptr<Packer> packer;
  EXPECT_EQ(Packer::Open(driver, facts, &cache, &packer).message(), "");
  return packer;
}

// Tensors of these counts, whose elements tell tensor and place.
std::vector<Elements> TensorsOf(DType dtype, const std::vector<int64_t>& counts) {
  std::vector<Elements> tensors;
  for (size_t t = 0; t < counts.size(); ++t) {
    tensors.emplace_back(dtype, counts[t]);
    for (int64_t i = 0; i < counts[t]; ++i) {
      tensors[t].Set(i, static_cast<double>((static_cast<int64_t>(t) * 7 + i) % 61 + 1));
    }
  }
  return tensors;
}

std::vector<TensorView> ViewsOf(std::vector<Elements>* tensors) {
  std::vector<TensorView> views;
  for (Elements& tensor : *tensors) views.push_back(tensor.view());
  return views;
}

// Packs, looks at the buffer, unpacks elsewhere, looks at the tensors.
void CheckRoundTrip(DType dtype, DType wire, double factor, const std::vector<int64_t>& counts) {
  FakeCudaDriver driver;
  const std::unique_ptr<Packer> packer = OpenPacker(&driver);
  std::vector<Elements> tensors = TensorsOf(dtype, counts);
  const std::vector<TensorView> views = ViewsOf(&tensors);
  const int64_t size = Packer::BufferCount(views);
  Elements buffer(wire, size);
  for (int64_t i = 0; i < size; ++i) buffer.Set(i, 1);
  EXPECT_EQ(packer->Pack(views, wire, factor, buffer.view().data, nullptr).message(), "");
  EXPECT(driver.Synchronize());
  int64_t at = 0;
  for (size_t t = 0; t < counts.size(); ++t) {
    Elements expected(wire, counts[t]);
    CastScaled(dtype, views[t].data, counts[t], factor, wire, expected.view().data);
    for (int64_t i = 0; i < counts[t]; ++i) EXPECT_EQ(buffer.Get(at + i), expected.Get(i));
    for (at += counts[t]; at % 8 != 0; ++at) EXPECT_EQ(buffer.Get(at), 0.0);
  }
  EXPECT_EQ(at, size);
  std::vector<Elements> results = TensorsOf(dtype, counts);
  for (Elements& result : results) {
    for (int64_t i = 0; i < result.view().count(); ++i) result.Set(i, 0);
  }
  EXPECT_EQ(
      packer->Unpack(ViewsOf(&results), wire, 1 / factor, buffer.view().data, nullptr).message(),
      "");
  EXPECT(driver.Synchronize());
  for (size_t t = 0; t < counts.size(); ++t) {
    for (int64_t i = 0; i < counts[t]; ++i) EXPECT_EQ(results[t].Get(i), tensors[t].Get(i));
  }
}

}  // namespace

TEST(PackAndUnpackOfEveryDtypeInEveryWireType) {
  const std::vector<int64_t> counts = {0, 1, 7, 8, 9, 0, 8191, 8193, 3};
  for (DType dtype : kAllDTypes) CheckRoundTrip(dtype, dtype, 1, counts);
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (DType wire : {dtype, DType::kFloat16, DType::kBfloat16}) {
      for (double factor : {1.0, 0.5}) CheckRoundTrip(dtype, wire, factor, counts);
    }
  }
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) CheckRoundTrip(dtype, dtype, 0.5, counts);
}

TEST(PackOfMoreTensorsThanOneLaunchTakes) {
  for (size_t tensors : {1u, 167u, 168u, 169u, 400u}) {
    std::vector<int64_t> counts;
    for (size_t t = 0; t < tensors; ++t) counts.push_back(static_cast<int64_t>(t % 13));
    CheckRoundTrip(DType::kFloat32, DType::kFloat16, 0.25, counts);
  }
}

TEST(PackOfNothingLaunchesNothing) {
  FakeCudaDriver driver;
  const std::unique_ptr<Packer> packer = OpenPacker(&driver);
  std::vector<Elements> tensors = TensorsOf(DType::kFloat32, {0, 0});
  EXPECT(packer->Pack(ViewsOf(&tensors), DType::kFloat32, 1, nullptr, nullptr).ok());
  EXPECT(packer->Pack({}, DType::kFloat32, 1, nullptr, nullptr).ok());
  EXPECT(driver.log() == std::vector<std::string>{"load kernels for sm_80"});
}

TEST(PackLaunchesNoMoreBlocksThanTheDeviceHolds) {
  FakeCudaDriver driver;  // of 4 multiprocessors
  const std::unique_ptr<Packer> packer = OpenPacker(&driver);
  std::vector<Elements> tensors = TensorsOf(DType::kInt8, {8192 * 3 + 1});
  std::vector<char> buffer(1 << 20);
  EXPECT(packer->Pack(ViewsOf(&tensors), DType::kInt8, 1, buffer.data(), nullptr).ok());
  EXPECT(driver.log().back() == "launch pack_1_bytes on stream 0, 4 blocks of 256");
  EXPECT(driver.Synchronize());
  tensors = TensorsOf(DType::kInt8, {8192 * 64});
  EXPECT(packer->Pack(ViewsOf(&tensors), DType::kInt8, 1, buffer.data(), nullptr).ok());
  EXPECT(driver.log().back() == "launch pack_1_bytes on stream 0, 32 blocks of 256");
  EXPECT(driver.Synchronize());
}
