// The XLA kernel of an op that has no form in XLA: its compilation fails, with a message that names
// the op and says what to do. Without it TensorFlow would only name the op.
#ifndef TFDIST_TF_XLA_REFUSED_CALL_H_
#define TFDIST_TF_XLA_REFUSED_CALL_H_

#include <string>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace tfdist {

class RefusedCall : public tensorflow::XlaOpKernel {
 public:
  RefusedCall(tensorflow::OpKernelConstruction* context, const std::string& reason)
      : XlaOpKernel(context),
        message_(context->def().op() + " cannot be compiled by XLA: " + reason) {}

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    context->CtxFailure(absl::UnimplementedError(message_));
  }

 private:
  const std::string message_;
};

}  // namespace tfdist

#endif  // TFDIST_TF_XLA_REFUSED_CALL_H_
