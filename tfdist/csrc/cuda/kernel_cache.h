// Compiled kernels on disk, so that a process waits for the compiler once a machine and not once a
// start. Not the compiler.
//
// A file that is damaged, of another user or writable by others is not used but replaced: an image
// runs with the rights of the process. Ranks that start together may compile the same: each writes
// a file of its own and renames it. For one thread at a time.
#ifndef TFDIST_CUDA_KERNEL_CACHE_H_
#define TFDIST_CUDA_KERNEL_CACHE_H_

#include <string>

#include "core/value/status.h"
#include "cuda/kernel_compiler.h"

namespace tfdist {

class KernelCache {
 public:
  // Keeps images in `folder`, which is made if it is missing; where that fails, or it is empty,
  // nothing is kept. `compiler` outlives the cache.
  KernelCache(KernelCompiler* compiler, std::string folder);

  // The image of `source` for `architecture`, kept or compiled.
  Status Image(const std::string& source, const std::string& architecture, std::string* image);

 private:
  std::string Key(const std::string& source, const std::string& architecture) const;
  bool Read(const std::string& path, const std::string& key, std::string* image) const;
  void Write(const std::string& path, const std::string& key, const std::string& image) const;

  KernelCompiler* const compiler_;
  const std::string folder_;
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_KERNEL_CACHE_H_
