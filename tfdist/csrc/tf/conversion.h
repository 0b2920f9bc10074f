// Translates between TensorFlow and core: statuses, dtypes, tensors, attribute values. Runs no
// collective.
#ifndef TFDIST_TF_CONVERSION_H_
#define TFDIST_TF_CONVERSION_H_

#include <cstdint>
#include <string>

#include "core/engine/engine.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfdist {

// Same code, same message.
absl::Status ToTensorFlow(const Status& status);
Status FromTensorFlow(const absl::Status& status);

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
