// Tensors side by side as one run of elements, without a copy: reads them in the type that travels
// and writes results back. Not memory: the tensors stay where they are.
//
// Refers to the tensors' memory, which outlives it. Reads may run in several threads at once.
#ifndef TFDIST_CORE_ALGORITHM_FUSED_VIEW_H_
#define TFDIST_CORE_ALGORITHM_FUSED_VIEW_H_

#include <cstdint>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/float_span.h"
#include "core/value/tensor_view.h"

namespace tfdist {

// How elements change on their way. Floating types are scaled in float32, or float64 where they are
// that wide; other types only with factors of 1.
struct Conversion {
  DType wire = DType::kFloat32;  // the type that travels
  double pack = 1;               // multiplies what is read
  double unpack = 1;             // multiplies what is written
  bool counts = true;            // false: reads give zeros, whatever the tensors hold
  Stores stores = Stores::kCached;
};

class FusedView {
 public:
  explicit FusedView(const Conversion& conversion) : conversion_(conversion) {}

  // Puts `tensor` behind those that were added before. All have one dtype.
  void Add(const TensorView& tensor);

  DType wire() const { return conversion_.wire; }
  int64_t count() const { return starts_.back(); }

  // Where all elements lie side by side as they travel; null if that is nowhere.
  char* Memory() const;

  // Elements [begin, begin + count) as they travel: their own memory where nothing has to change,
  // else `buffer`, which has room for them.
  const char* Read(int64_t begin, int64_t count, char* buffer) const;

  // As Read, always into `target`.
  void Copy(int64_t begin, int64_t count, char* target) const;

  // Overwrites the elements with what has travelled.
  void Write(int64_t begin, int64_t count, const char* source) const;

 private:
  template <typename Visit>
  void ForEachPart(int64_t begin, int64_t count, const Visit& visit) const;
  size_t TensorAt(int64_t element) const;
  bool AsTheyAre() const;

  const Conversion conversion_;
  DType dtype_ = DType::kFloat32;      // of all tensors
  std::vector<char*> tensors_;         // where each begins; those without elements are left out
  std::vector<int64_t> starts_ = {0};  // first element of each, and behind the last
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_FUSED_VIEW_H_
