// Writes and reads elements of any dtype as double, for tests that run over all dtypes.
#ifndef TESTS_CPP_ELEMENT_H_
#define TESTS_CPP_ELEMENT_H_

#include <cstdint>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/tensor_view.h"

constexpr tfdist::DType kAllDTypes[] = {
    tfdist::DType::kBool,    tfdist::DType::kUint8,   tfdist::DType::kInt8,
    tfdist::DType::kUint16,  tfdist::DType::kInt16,   tfdist::DType::kInt32,
    tfdist::DType::kInt64,   tfdist::DType::kFloat16, tfdist::DType::kBfloat16,
    tfdist::DType::kFloat32, tfdist::DType::kFloat64,
};

void SetElement(tfdist::DType dtype, void* data, int64_t index, double value);
double GetElement(tfdist::DType dtype, const void* data, int64_t index);

// A vector of elements of one dtype that owns its memory.
class Elements {
 public:
  Elements() = default;
  Elements(tfdist::DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(count * tfdist::SizeOf(dtype) + 1) {}

  void Set(int64_t index, double value) { SetElement(dtype_, bytes_.data(), index, value); }
  double Get(int64_t index) const { return GetElement(dtype_, bytes_.data(), index); }
  int64_t count() const { return count_; }
  const std::vector<char>& bytes() const { return bytes_; }
  tfdist::TensorView view() { return {dtype_, {count_}, bytes_.data()}; }

 private:
  tfdist::DType dtype_ = tfdist::DType::kFloat32;
  int64_t count_ = 0;
  std::vector<char> bytes_;
};

#endif  // TESTS_CPP_ELEMENT_H_
