// A custom call as XLA makes it, in terms of core: tensors, attributes, the options of collectives.
// The same on every platform. Runs no collective, and reads no tensor.
#ifndef TFDIST_TF_XLA_INVOCATION_H_
#define TFDIST_TF_XLA_INVOCATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow's own; its header would pull in the compiler.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfdist {

// The parameters are XLA's and outlive it; so does the memory of the tensors.
class Invocation {
 public:
  Invocation(const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results,
             const xla::ffi::Dictionary& attributes)
      : operands_(operands), results_(results), attributes_(attributes) {}

  // Attributes, by the names in custom_call.h.
  Status Number(const char* name, int64_t* value) const;
  Status Factor(const char* name, double* value) const;
  Status Text(const char* name, std::string* value) const;
  Status TensorNames(std::vector<std::string>* names) const;
  Status FindEngine(std::shared_ptr<Engine>* engine) const;

  // With the token, which is the last of either.
  size_t operands() const { return operands_.size(); }
  size_t results() const { return results_.size(); }

  Status Operand(size_t index, TensorView* view) const;
  Status Result(size_t index, TensorView* view) const;

  // All results but the token, and as many operands.
  Status Tensors(std::vector<TensorView>* inputs, std::vector<TensorView>* outputs) const;

 private:
  template <typename T>
  Status Attribute(const char* name, T* value) const;

  const xla::ffi::RemainingArgs& operands_;
  const xla::ffi::RemainingRets& results_;
  const xla::ffi::Dictionary& attributes_;
};

// Without prescale, postscale and weight, which each platform hands over in its own way.
Status ReadOptions(const Invocation& invocation, AllreduceOptions* options);
Status ReadOptions(const Invocation& invocation, GatherOptions* options);
Status ReadOptions(const Invocation& invocation, BroadcastOptions* options);

// Same code, same message.
xla::ffi::Error ToXla(const Status& status);

}  // namespace tfdist

#endif  // TFDIST_TF_XLA_INVOCATION_H_
