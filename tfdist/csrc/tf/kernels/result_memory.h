// Memory for the results of a kernel, kept for its next call if it is small.
//
// A step that reduces hundreds of small tensors spends more time on allocating and freeing them
// than on their sums. So what a kernel has given out once it gives out again, as soon as nobody
// else holds it. Not for results that are forwarded inputs, which cost nothing. Calls take turns.
#ifndef TFDIST_TF_KERNELS_RESULT_MEMORY_H_
#define TFDIST_TF_KERNELS_RESULT_MEMORY_H_

#include <vector>

#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

class ResultMemory {
 public:
  // What all kernels of the process keep at most, in bytes.
  static constexpr int64_t kMostBytes = 4 << 20;

  ResultMemory() = default;
  ~ResultMemory();
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // Outputs 0 to `count` - 1, each of the shape of the input of its number, and in its memory where
  // nobody else reads it.
  Status Give(tensorflow::OpKernelContext* context, int count, std::vector<TensorView>* views);

 private:
  Status GiveOne(tensorflow::OpKernelContext* context, int index, TensorView* view);
  void Keep(int index, const tensorflow::Tensor& result);

  std::vector<tensorflow::Tensor> kept_;  // by output
  int64_t kept_bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_TF_KERNELS_RESULT_MEMORY_H_
