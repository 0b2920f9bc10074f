// Memory in which tensors lie side by side to travel as one, and the passes that copy them in and
// out. Not a cache: the content has no meaning between two collectives.
//
// Owns its memory, which grows and never shrinks. For one thread at a time.
#ifndef TFDIST_CORE_FUSION_BUFFER_H_
#define TFDIST_CORE_FUSION_BUFFER_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor_view.h"

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

// target = cast(source * scale) in one pass. Floating types are scaled in float32 (float64 when
// `from` is float64) and rounded once to `to`; float64 goes to 16 bit by way of float32. For all
// other types `from` must be `to` and `scale` 1. Spans do not overlap.
void CastScaled(DType from, const void* source, int64_t count, double scale, DType to,
                void* target);

// Tensor -> `target`, in the wire type. Returns the address behind the last byte written.
char* Pack(const TensorView& tensor, DType wire, double prescale, char* target);

// `source`, in the wire type -> tensor. Returns the address behind the last byte read.
const char* Unpack(const char* source, DType wire, double postscale, const TensorView& tensor);

}  // namespace tfdist

#endif  // TFDIST_CORE_FUSION_BUFFER_H_
