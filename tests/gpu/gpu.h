// A real GPU as the parts of the test use it: driver, compiler, one stream and memory.
//
// What fails here ends the program, because all that follows would fail too.
#ifndef TESTS_GPU_GPU_H_
#define TESTS_GPU_GPU_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/status.h"
#include "cuda/cuda_driver.h"
#include "cuda/kernel_compiler.h"
#include "cuda/packer.h"

// Paths of libraries, in the order in which they are tried.
struct Libraries {
  std::vector<std::string> nvrtc;
  std::vector<std::string> nccl;
};

void Require(const tfdist::Status& status);

// GPU 0, current for the thread that made it.
class Gpu {
 public:
  explicit Gpu(const Libraries& libraries);

  tfdist::CudaDriver* driver() const { return driver_.get(); }
  tfdist::KernelCompiler* compiler() const { return compiler_.get(); }
  const tfdist::DeviceFacts& facts() const { return facts_; }
  tfdist::CudaStream stream() const { return stream_; }

  std::unique_ptr<tfdist::Packer> NewPacker() const;

  void WaitFor(tfdist::CudaEvent event) const;
  // Waits for all that is in `stream`.
  void Synchronize(tfdist::CudaStream stream) const;

  // Seconds of one `work` in the stream: the least of ten means of twenty.
  double SecondsOf(const std::function<void()>& work) const;

 private:
  std::unique_ptr<tfdist::CudaDriver> driver_;
  std::unique_ptr<tfdist::KernelCompiler> compiler_;
  tfdist::DeviceFacts facts_;
  tfdist::CudaStream stream_ = nullptr;
};

// Memory of the GPU. Put and Get wait until they are done.
class DeviceMemory {
 public:
  DeviceMemory(const Gpu& gpu, int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return static_cast<char*>(memory_); }
  void Put(const void* source, int64_t bytes, int64_t offset = 0) const;
  void Get(void* target, int64_t bytes, int64_t offset = 0) const;

 private:
  const Gpu& gpu_;
  void* memory_ = nullptr;
};

// Tensors of float32 on the GPU that own their memory.
class DeviceTensors {
 public:
  DeviceTensors(const Gpu& gpu, const std::vector<int64_t>& counts);

  const std::vector<tfdist::TensorView>& views() const { return views_; }
  int64_t count() const { return count_; }  // of all elements

  void Put(size_t tensor, const std::vector<float>& values) const;
  std::vector<float> Get(size_t tensor) const;

 private:
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<tfdist::TensorView> views_;
  int64_t count_ = 0;
};

// Elements of the parameters of ResNet-50: 161 tensors, 25.6 million elements, 102 MB of float32.
std::vector<int64_t> ResNet50();

// Bits at random: also NaNs, infinities and subnormals of every floating type.
std::vector<char> RandomBytes(int64_t bytes, unsigned seed);

// Whether elements have the same bits. NaNs may differ in their payload where two formats meet.
bool SameElements(tfdist::DType dtype, const char* a, const char* b, int64_t count);

#endif  // TESTS_GPU_GPU_H_
