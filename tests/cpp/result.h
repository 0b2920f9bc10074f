// Memory for results whose shape a collective tells only during the call, one a tensor.
#ifndef TESTS_CPP_RESULT_H_
#define TESTS_CPP_RESULT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/algorithm/fused_collective.h"
#include "core/value/dtype.h"
#include "core/value/tensor_view.h"
#include "element.h"

class Results {
 public:
  explicit Results(std::vector<tfdist::DType> dtypes)
      : dtypes_(std::move(dtypes)), shapes_(dtypes_.size()), elements_(dtypes_.size()) {}

  tfdist::Allocate Allocator() {
    return [this](int tensor, const std::vector<int64_t>& shape, tfdist::TensorView* view) {
      ++allocations_;
      int64_t count = 1;
      for (int64_t dim : shape) count *= dim;
      const tfdist::DType dtype = dtypes_.at(tensor);
      shapes_[tensor] = tfdist::ShapeString(shape);
      elements_[tensor] = Elements(dtype, count);
      *view = {dtype, shape, elements_[tensor].view().data};
      return tfdist::Status::Ok();
    };
  }

  // What the allocator was asked for; empty when it was not.
  const std::string& shape(int tensor) const { return shapes_.at(tensor); }
  const Elements& operator[](int tensor) const { return elements_.at(tensor); }
  int allocations() const { return allocations_; }

 private:
  std::vector<tfdist::DType> dtypes_;
  std::vector<std::string> shapes_;
  std::vector<Elements> elements_;
  int allocations_ = 0;
};

#endif  // TESTS_CPP_RESULT_H_
