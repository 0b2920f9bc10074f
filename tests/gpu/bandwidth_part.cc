// How fast pack and unpack are, beside a copy of the same memory by the driver.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "part.h"

using tfdist::DType;
using tfdist::Packer;

namespace {

constexpr double kGiga = 1e9;

// A copy reads and writes its bytes; pack and unpack read and write tensors and buffer.
void ShowBandwidth(const Gpu& gpu, Packer* packer, const char* name,
                   const std::vector<int64_t>& counts) {
  const DeviceTensors tensors(gpu, counts);
  const int64_t size = Packer::BufferCount(tensors.views());
  const DeviceMemory buffer(gpu, size * 4), other(gpu, size * 4);
  const double copied = 8.0 * static_cast<double>(size) / gpu.SecondsOf([&] {
    Require(gpu.driver()->Copy(other.data(), buffer.data(), size * 4, gpu.stream()));
  });
  for (DType wire : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    const double moved = static_cast<double>(tensors.count() * (4 + SizeOf(wire)));
    const double packed = moved / gpu.SecondsOf([&] {
      Require(packer->Pack(tensors.views(), wire, 0.5, buffer.data(), gpu.stream()));
    });
    const double unpacked = moved / gpu.SecondsOf([&] {
      Require(packer->Unpack(tensors.views(), wire, 2, buffer.data(), gpu.stream()));
    });
    std::printf("| %s | %s | %.0f | %.0f | %.0f %% | %.0f | %.0f %% |\n", name, NameOf(wire),
                copied / kGiga, packed / kGiga, 100 * packed / copied, unpacked / kGiga,
                100 * unpacked / copied);
    if (wire == DType::kBfloat16) continue;  // as float16
    PrintFigures(Format("%s as %s: pack %.0f GB/s (%.0f %% of copy), unpack %.0f (%.0f %%)", name,
                        NameOf(wire), packed / kGiga, 100 * packed / copied, unpacked / kGiga,
                        100 * unpacked / copied));
  }
}

}  // namespace

void TestBandwidth(const Libraries& libraries) {
  const Gpu gpu(libraries);
  const std::unique_ptr<Packer> packer = gpu.NewPacker();
  std::printf("| tensors of float32 | wire | copy, GB/s | pack | of copy | unpack | of copy |\n");
  std::printf("| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
  ShowBandwidth(gpu, packer.get(), "ResNet-50", ResNet50());
  ShowBandwidth(gpu, packer.get(), "1 GB", {250000000});
}
