// A tensor that somebody else owns: dtype, shape and address. Copying it copies no element.
#ifndef TFDIST_CORE_VALUE_TENSOR_VIEW_H_
#define TFDIST_CORE_VALUE_TENSOR_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/value/dtype.h"

namespace tfdist {

struct TensorView {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  void* data = nullptr;  // contiguous, row-major; may be null when count() is 0

  // Elements; 1 for a scalar.
  int64_t count() const {
    int64_t elements = 1;
    for (int64_t dim : shape) elements *= dim;
    return elements;
  }
  int64_t bytes() const { return count() * SizeOf(dtype); }

  // Of one row, that is, of what one index of dimension 0 has; a scalar is one row.
  int64_t row_bytes() const {
    int64_t elements = 1;
    for (size_t d = 1; d < shape.size(); ++d) elements *= shape[d];
    return elements * SizeOf(dtype);
  }
};

// "[3,4]"
std::string ShapeString(const std::vector<int64_t>& shape);

// A name as messages show it.
std::string Quoted(const std::string& name);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_TENSOR_VIEW_H_
