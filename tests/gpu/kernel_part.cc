// The kernels of pack and unpack: that NVRTC compiles them, and what they compute.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/value/cast.h"
#include "cuda/loaded_nvrtc.h"
#include "cuda/pack_kernels.h"
#include "element.h"
#include "expect.h"
#include "part.h"

using tfdist::DType;
using tfdist::KernelCompiler;
using tfdist::PackAligned;
using tfdist::Packer;
using tfdist::Status;
using tfdist::TensorView;

namespace {

// Volta is beyond NVRTC 13.
constexpr int kFirstNvrtcWithoutSm70 = 13000;

// One way of the kernels.
struct Conversion {
  DType dtype;
  DType wire;
  double factor;
};

// Tensors at random with their copies on the GPU, each `shift` elements behind an aligned address.
class RandomTensors {
 public:
  RandomTensors(const Gpu& gpu, DType dtype, const std::vector<int64_t>& counts, int64_t shift)
      : skipped_(shift * SizeOf(dtype)) {
    for (size_t t = 0; t < counts.size(); ++t) {
      const int64_t all = skipped_ + counts[t] * SizeOf(dtype);
      hosts_.push_back(RandomBytes(all, static_cast<unsigned>(t + 1)));
      devices_.push_back(std::make_unique<DeviceMemory>(gpu, all));
      devices_[t]->Put(hosts_[t].data(), all);
      views_.push_back({dtype, {counts[t]}, devices_[t]->data() + skipped_});
    }
  }

  const std::vector<TensorView>& views() const { return views_; }
  const char* host(size_t tensor) const { return hosts_[tensor].data() + skipped_; }

  // That a tensor has these bytes, and that what lies before it was not touched.
  void Check(size_t tensor, const std::vector<char>& expected) const {
    const std::vector<char>& before = hosts_[tensor];
    std::vector<char> now(before.size());
    devices_[tensor]->Get(now.data(), static_cast<int64_t>(now.size()));
    const TensorView& view = views_[tensor];
    EXPECT(std::memcmp(now.data(), before.data(), static_cast<size_t>(skipped_)) == 0);
    EXPECT(SameElements(view.dtype, now.data() + skipped_, expected.data(), view.count()));
  }

 private:
  const int64_t skipped_;  // bytes
  std::vector<std::vector<char>> hosts_;
  std::vector<std::unique_ptr<DeviceMemory>> devices_;
  std::vector<TensorView> views_;
};

// Packs, looks at the buffer, unpacks to where it came from, looks at the tensors.
void CheckKernels(const Gpu& gpu, Packer* packer, const Conversion& conversion,
                  const std::vector<int64_t>& counts, int64_t shift) {
  const auto [dtype, wire, factor] = conversion;
  const RandomTensors tensors(gpu, dtype, counts, shift);
  const int64_t wire_bytes = SizeOf(wire);
  const int64_t size = Packer::BufferCount(tensors.views());
  const DeviceMemory buffer(gpu, size * wire_bytes);
  buffer.Put(RandomBytes(size * wire_bytes, 77).data(), size * wire_bytes);
  Require(packer->Pack(tensors.views(), wire, factor, buffer.data(), gpu.stream()));
  std::vector<char> packed(static_cast<size_t>(size * wire_bytes));
  buffer.Get(packed.data(), size * wire_bytes);
  Require(packer->Unpack(tensors.views(), wire, 1 / factor, buffer.data(), gpu.stream()));
  int64_t at = 0;
  for (size_t t = 0; t < counts.size(); ++t) {
    const char* const part = packed.data() + at * wire_bytes;
    std::vector<char> expected(static_cast<size_t>(PackAligned(counts[t]) * wire_bytes));
    CastScaled(dtype, tensors.host(t), counts[t], factor, wire, expected.data());
    // With the zeros behind it.
    EXPECT(SameElements(wire, part, expected.data(), PackAligned(counts[t])));
    std::vector<char> result(static_cast<size_t>(counts[t] * SizeOf(dtype)));
    CastScaled(wire, part, counts[t], 1 / factor, dtype, result.data());
    tensors.Check(t, result);
    at += PackAligned(counts[t]);
  }
}

std::vector<Conversion> EveryConversion() {
  std::vector<Conversion> all;
  for (DType dtype : kAllDTypes) all.push_back({dtype, dtype, 1});
  for (double factor : {1.0, 0.25, 1.0 / 3}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (DType wire : {dtype, DType::kFloat16, DType::kBfloat16}) {
        all.push_back({dtype, wire, factor});
      }
    }
    for (DType dtype : {DType::kFloat16, DType::kBfloat16}) all.push_back({dtype, dtype, factor});
  }
  return all;
}

// Elements after which large tensors repeat: a prime.
constexpr int64_t kPeriod = 67108859;

// One tensor whose elements repeat with a prime period, so that an address that loses its upper
// bits reads something else, and that nothing of its size is needed on the host.
void CheckLarge(const Gpu& gpu, Packer* packer, const Conversion& conversion, int64_t count) {
  const auto [dtype, wire, factor] = conversion;
  const int64_t bytes = SizeOf(dtype), wire_bytes = SizeOf(wire);
  const std::vector<char> tile = RandomBytes(kPeriod * bytes, 1);
  std::vector<char> packed(static_cast<size_t>(kPeriod * wire_bytes));
  std::vector<char> result(static_cast<size_t>(kPeriod * bytes));
  CastScaled(dtype, tile.data(), kPeriod, factor, wire, packed.data());
  CastScaled(wire, packed.data(), kPeriod, 1 / factor, dtype, result.data());
  const auto for_each_tile = [count](const auto& visit) {
    for (int64_t begin = 0; begin < count; begin += kPeriod) {
      visit(begin, std::min(kPeriod, count - begin));
    }
  };
  const DeviceMemory source(gpu, count * bytes), target(gpu, count * bytes);
  const DeviceMemory buffer(gpu, PackAligned(count) * wire_bytes);
  for_each_tile(
      [&](int64_t begin, int64_t n) { source.Put(tile.data(), n * bytes, begin * bytes); });
  const std::vector<TensorView> from = {{dtype, {count}, source.data()}};
  const std::vector<TensorView> to = {{dtype, {count}, target.data()}};
  Require(packer->Pack(from, wire, factor, buffer.data(), gpu.stream()));
  Require(packer->Unpack(to, wire, 1 / factor, buffer.data(), gpu.stream()));
  std::vector<char> seen(static_cast<size_t>(kPeriod * std::max(bytes, wire_bytes)));
  for_each_tile([&](int64_t begin, int64_t n) {
    buffer.Get(seen.data(), n * wire_bytes, begin * wire_bytes);
    EXPECT(SameElements(wire, seen.data(), packed.data(), n));
    target.Get(seen.data(), n * bytes, begin * bytes);
    EXPECT(SameElements(dtype, seen.data(), result.data(), n));
  });
}

}  // namespace

void TestCompile(const Libraries& libraries) {
  std::unique_ptr<KernelCompiler> compiler;
  Require(LoadNvrtc(libraries.nvrtc, &compiler));
  std::printf("%s\n", compiler->Describe().c_str());
  std::string compiled;
  for (const char* architecture : {"sm_70", "sm_80", "sm_90", "sm_100"}) {
    if (architecture == std::string("sm_70") && compiler->version() >= kFirstNvrtcWithoutSm70) {
      std::printf("sm_70: left out, this NVRTC knows it no more\n");
      continue;
    }
    std::string image;
    Require(compiler->Compile(tfdist::PackKernels(), architecture, &image));
    EXPECT_EQ(image.substr(1, 3), std::string("ELF"));
    std::printf("%s: kernels of %zu bytes\n", architecture, image.size());
    compiled += (compiled.empty() ? "" : ", ") + std::string(architecture);
  }
  std::string image;
  const Status status = compiler->Compile("not CUDA", "sm_80", &image);
  EXPECT_CONTAINS(status.message(), "could not compile the kernels for sm_80");
  EXPECT_CONTAINS(status.message(), "tfdist.cu(1)");
  PrintFigures(compiled + " by NVRTC " + std::to_string(compiler->version() / 1000) + "." +
               std::to_string(compiler->version() % 1000));
}

void TestKernels(const Libraries& libraries) {
  const Gpu gpu(libraries);
  const std::unique_ptr<Packer> packer = gpu.NewPacker();
  std::vector<int64_t> many;
  for (int64_t t = 0; t < 400; ++t) many.push_back(t * 37 % 1001);
  const std::vector<std::vector<int64_t>> lists = {
      {0}, {1}, {7}, {8}, {8191, 8193, 1}, {1000003}, {0, 5, 0, 100000, 3}, many};
  const std::vector<Conversion> conversions = EveryConversion();
  for (const std::vector<int64_t>& counts : lists) {
    for (int64_t shift : {0, 1, 3}) {
      for (const Conversion& conversion : conversions) {
        CheckKernels(gpu, packer.get(), conversion, counts, shift);
      }
    }
  }
  PrintFigures(Format("%zu conversions of %zu lists at 3 alignments, bit by bit",
                      conversions.size(), lists.size()));
}

void TestLarge(const Libraries& libraries) {
  const Gpu gpu(libraries);
  const int64_t count = (int64_t{1} << 31) + 3;
  const int64_t needed = count * (2 * 4 + 2) + (int64_t{1} << 30);
  if (gpu.facts().memory_bytes < needed) {
    EndWithoutRun(Format("needs %.0f GB of GPU memory, %s has %.0f",
                         static_cast<double>(needed) / 1e9, gpu.facts().name.c_str(),
                         static_cast<double>(gpu.facts().memory_bytes) / 1e9));
  }
  const std::unique_ptr<Packer> packer = gpu.NewPacker();
  CheckLarge(gpu, packer.get(), {DType::kInt8, DType::kInt8, 1}, count);
  CheckLarge(gpu, packer.get(), {DType::kFloat32, DType::kFloat16, 0.5}, count);
  PrintFigures("2^31 + 3 elements of int8, and of float32 as float16");
}
