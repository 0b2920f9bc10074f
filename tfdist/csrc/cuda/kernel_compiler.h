// Compiles CUDA C++ while the program runs, for the device that is found. An interface: NVRTC
// (loaded_nvrtc.h) is the real one, tests have a fake.
#ifndef TFDIST_CUDA_KERNEL_COMPILER_H_
#define TFDIST_CUDA_KERNEL_COMPILER_H_

#include <string>

#include "core/value/status.h"

namespace tfdist {

class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;

  // "NVRTC 12.9 (/path/libnvrtc.so.12)", for messages.
  virtual std::string Describe() const = 0;

  // As 12009 for 12.9. Another version may make another image of the same source.
  virtual int version() const = 0;

  // `architecture` as in "sm_80"; the driver loads `image` on devices of that kind.
  virtual Status Compile(const std::string& source, const std::string& architecture,
                         std::string* image) = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_KERNEL_COMPILER_H_
