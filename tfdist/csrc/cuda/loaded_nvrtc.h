// NVRTC, NVIDIA's compiler as a shared library, found while the program runs. Needs no GPU.
#ifndef TFDIST_CUDA_LOADED_NVRTC_H_
#define TFDIST_CUDA_LOADED_NVRTC_H_

#include <memory>
#include <string>
#include <vector>

#include "core/value/status.h"
#include "cuda/kernel_compiler.h"

namespace tfdist {

// Tries `paths` in order, after what is loaded; it is never unloaded. NVRTC 12 and 13 will do, but
// 13 knows no sm_70, and needs a driver for CUDA 13. kUnimplemented, with what was tried and what
// to install, if there is none.
Status LoadNvrtc(const std::vector<std::string>& paths, std::unique_ptr<KernelCompiler>* compiler);

}  // namespace tfdist

#endif  // TFDIST_CUDA_LOADED_NVRTC_H_
