// Translates between TensorFlow and core: statuses, dtypes, tensors, attribute values. Runs no
// collective.
#ifndef TFDIST_TF_CONVERSION_H_
#define TFDIST_TF_CONVERSION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/engine/engine.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfdist {

// Same code, same message.
absl::Status ToTensorFlow(const Status& status);
Status FromTensorFlow(const absl::Status& status);

// The type that belongs to one of another library; false where none does.
template <typename From, size_t kPairs>
bool FindDType(const std::pair<From, DType> (&pairs)[kPairs], From from, DType* found) {
  for (const auto& pair : pairs) {
    if (pair.first != from) continue;
    *found = pair.second;
    return true;
  }
  return false;
}

// kInvalidArgument for a dtype that collectives do not carry.
Status ToDType(tensorflow::DataType dtype, DType* out);

// A view of the tensor's memory, which the tensor keeps owning.
Status ToTensorView(const tensorflow::Tensor& tensor, TensorView* out);

Status ToReduction(const std::string& name, Reduction* out);
Status ToCompression(const std::string& name, Compression* out);

// The weight of this rank in the average `label`; kInvalidArgument where it does not fit.
Status ToWeight(const std::string& label, int64_t weight, uint32_t* out);

// "rank", "size", "local_rank" or "local_size".
int TopologyValue(const Topology& topology, const std::string& what);

}  // namespace tfdist

#endif  // TFDIST_TF_CONVERSION_H_
