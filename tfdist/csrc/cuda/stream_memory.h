// Memory of a GPU for the work of one stream, which grows without waiting for that work: what it
// was before is given back when the stream has passed it. Not a pool.
//
// For one thread at a time, with its device current.
#ifndef TFDIST_CUDA_STREAM_MEMORY_H_
#define TFDIST_CUDA_STREAM_MEMORY_H_

#include <cstdint>
#include <vector>

#include "core/value/status.h"
#include "cuda/cuda_driver.h"

namespace tfdist {

class StreamMemory {
 public:
  // `driver` outlives it.
  explicit StreamMemory(CudaDriver* driver) : driver_(driver) {}

  // All work that uses it must have happened, or never will.
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Has `bytes` for what comes into `stream` from now on, always the same stream. What is in it is
  // lost where it has to grow.
  Status Reserve(int64_t bytes, CudaStream stream);

  char* data() const { return static_cast<char*>(memory_); }

 private:
  struct Retired {
    void* memory;
    CudaEvent after;
  };

  Status FreeRetired();

  CudaDriver* const driver_;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
  std::vector<Retired> retired_;
};

}  // namespace tfdist

#endif  // TFDIST_CUDA_STREAM_MEMORY_H_
