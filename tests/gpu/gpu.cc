#include "gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "cuda/loaded_cuda_driver.h"
#include "cuda/loaded_nvrtc.h"
#include "element.h"

using tfdist::CudaEvent;
using tfdist::CudaStream;
using tfdist::DType;
using tfdist::KernelCache;
using tfdist::Packer;
using tfdist::Status;

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_test: %s\n", status.message().c_str());
  std::exit(1);
}

Gpu::Gpu(const Libraries& libraries) {
  Require(LoadNvrtc(libraries.nvrtc, &compiler_));
  Require(tfdist::LoadCudaDriver(&driver_));
  Require(driver_->Use(0));
  Require(driver_->Describe(0, &facts_));
  Require(driver_->NewStream(false, &stream_));
}

std::unique_ptr<Packer> Gpu::NewPacker() const {
  KernelCache cache(compiler_.get(), "");
  std::unique_ptr<Packer> packer;
  Require(Packer::Open(driver_.get(), facts_, &cache, &packer));
  return packer;
}

void Gpu::WaitFor(CudaEvent event) const {
  for (bool happened = false; !happened;) Require(driver_->HasHappened(event, &happened));
}

void Gpu::Synchronize(CudaStream stream) const {
  CudaEvent event;
  Require(driver_->NewEvent(&event));
  Require(driver_->Record(event, stream));
  WaitFor(event);
  Require(driver_->DeleteEvent(event));
}

double Gpu::SecondsOf(const std::function<void()>& work) const {
  constexpr int kRounds = 10, kTimes = 20;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    Synchronize(stream_);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) work();
    Synchronize(stream_);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count() / kTimes);
  }
  return least;
}

DeviceMemory::DeviceMemory(const Gpu& gpu, int64_t bytes) : gpu_(gpu) {
  Require(gpu.driver()->Allocate(std::max<int64_t>(bytes, 1), &memory_));
}

DeviceMemory::~DeviceMemory() { Require(gpu_.driver()->Free(memory_)); }

void DeviceMemory::Put(const void* source, int64_t bytes, int64_t offset) const {
  if (bytes > 0) Require(gpu_.driver()->Copy(data() + offset, source, bytes, gpu_.stream()));
  gpu_.Synchronize(gpu_.stream());
}

void DeviceMemory::Get(void* target, int64_t bytes, int64_t offset) const {
  if (bytes > 0) Require(gpu_.driver()->Copy(target, data() + offset, bytes, gpu_.stream()));
  gpu_.Synchronize(gpu_.stream());
}

DeviceTensors::DeviceTensors(const Gpu& gpu, const std::vector<int64_t>& counts) {
  for (int64_t count : counts) {
    memory_.push_back(std::make_unique<DeviceMemory>(gpu, count * 4));
    views_.push_back({DType::kFloat32, {count}, memory_.back()->data()});
    count_ += count;
  }
}

void DeviceTensors::Put(size_t tensor, const std::vector<float>& values) const {
  memory_[tensor]->Put(values.data(), views_[tensor].bytes());
}

std::vector<float> DeviceTensors::Get(size_t tensor) const {
  std::vector<float> values(static_cast<size_t>(views_[tensor].count()));
  memory_[tensor]->Get(values.data(), views_[tensor].bytes());
  return values;
}

// Convolutions without bias, each with its normalisation, and the classifier.
std::vector<int64_t> ResNet50() {
  std::vector<int64_t> counts;
  const auto layer = [&](int64_t in, int64_t out, int64_t side) {
    counts.insert(counts.end(), {in * out * side * side, out, out});
  };
  layer(3, 64, 7);
  int64_t in = 64, width = 64;
  for (int blocks : {3, 4, 6, 3}) {
    for (int b = 0; b < blocks; ++b) {
      layer(in, width, 1);
      layer(width, width, 3);
      layer(width, 4 * width, 1);
      if (b == 0) layer(in, 4 * width, 1);
      in = 4 * width;
    }
    width *= 2;
  }
  counts.insert(counts.end(), {int64_t{2048} * 1000, 1000});
  return counts;
}

std::vector<char> RandomBytes(int64_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> all(static_cast<size_t>(bytes));
  for (char& one : all) one = static_cast<char>(random());
  return all;
}

bool SameElements(DType dtype, const char* a, const char* b, int64_t count) {
  const size_t bytes = static_cast<size_t>(SizeOf(dtype));
  if (std::memcmp(a, b, static_cast<size_t>(count) * bytes) == 0) return true;
  if (!IsFloating(dtype)) return false;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * bytes;
    if (std::memcmp(a + at, b + at, bytes) == 0) continue;
    const double x = GetElement(dtype, a, i), y = GetElement(dtype, b, i);
    if (x == x || y == y) return false;
  }
  return true;
}
