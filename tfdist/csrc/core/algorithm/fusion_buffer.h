// Memory in which tensors lie side by side to travel as one. Not a cache: the content has no
// meaning between two collectives.
//
// Owns its memory, which grows and never shrinks. For one thread at a time.
#ifndef TFDIST_CORE_ALGORITHM_FUSION_BUFFER_H_
#define TFDIST_CORE_ALGORITHM_FUSION_BUFFER_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/value/status.h"

namespace tfdist {

class FusionBuffer {
 public:
  // Makes room for `bytes`; earlier content is lost. kInternal when there is no memory.
  Status Reserve(int64_t bytes);

  // Aligned to 64 bytes; null before the first Reserve.
  char* data() const { return memory_.get(); }
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t capacity_bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_FUSION_BUFFER_H_
