// For TensorFlow releases whose XLA cannot call tfdist through the typed FFI: every op says so when
// it is compiled. Takes the place of all other sources of this folder in such a build.
#include <string>

#include "tf/xla/refused_call.h"
#include "tf/xla/registration.h"

namespace tfdist {
namespace {

class OldTensorFlowCall : public RefusedCall {
 public:
  explicit OldTensorFlowCall(tensorflow::OpKernelConstruction* context)
      : RefusedCall(
            context,
            "that needs TensorFlow " TFDIST_FIRST_TENSORFLOW_WITH_XLA
            " or newer; tfdist was built for TensorFlow " TFDIST_BUILD_TENSORFLOW
            ". Remove jit_compile=True, or install a newer TensorFlow and rebuild tfdist.") {}
};

#define TFDIST_REGISTER_REFUSED(name, reason)                                         \
  TFDIST_REGISTER("Tfdist" #name, tensorflow::DEVICE_CPU_XLA_JIT, OldTensorFlowCall); \
  TFDIST_REGISTER("Tfdist" #name, tensorflow::DEVICE_GPU_XLA_JIT, OldTensorFlowCall);

TFDIST_REGISTER_COMPILED(tensorflow::DEVICE_CPU_XLA_JIT, OldTensorFlowCall);
TFDIST_REGISTER_COMPILED(tensorflow::DEVICE_GPU_XLA_JIT, OldTensorFlowCall);
TFDIST_REFUSED_COLLECTIVES(TFDIST_REGISTER_REFUSED)

}  // namespace
}  // namespace tfdist
