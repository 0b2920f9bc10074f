// Registers the collectives that XLA compiles on no device.
#include "tf/xla/refused_call.h"

#include "tf/xla/registration.h"

namespace tfdist {
namespace {

#define TFDIST_REFUSE(name, reason)                                            \
  class name##Call : public RefusedCall {                                      \
   public:                                                                     \
    explicit name##Call(tensorflow::OpKernelConstruction* context)             \
        : RefusedCall(context, reason) {}                                      \
  };                                                                           \
  TFDIST_REGISTER("Tfdist" #name, tensorflow::DEVICE_CPU_XLA_JIT, name##Call); \
  TFDIST_REGISTER("Tfdist" #name, tensorflow::DEVICE_GPU_XLA_JIT, name##Call);

TFDIST_REFUSED_COLLECTIVES(TFDIST_REFUSE)

}  // namespace
}  // namespace tfdist
