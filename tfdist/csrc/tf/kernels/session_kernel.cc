#include "tf/kernels/session_kernel.h"

#include <utility>

#include "core/engine/unordered_calls.h"
#include "tf/conversion.h"

namespace tfdist {

namespace {

// TensorFlow's monitored sessions take "unavailable" for a reason to begin anew, for ever and
// without a word.
absl::Status ForSession(const Status& status) {
  const bool is_lost = status.code() == StatusCode::kUnavailable;
  return is_lost ? absl::Status(absl::StatusCode::kUnknown, status.message())
                 : ToTensorFlow(status);
}

}  // namespace

SessionKernel::SessionKernel(tensorflow::OpKernelConstruction* context)
    : CollectiveKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("_tfdist_key", &key_));
}

void SessionKernel::ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) {
  UnorderedCalls::Call call;
  call.key = key_;
  call.run = [this, context](Engine* engine) { return Run(context, engine, nullptr); };
  call.done = [context, done = std::move(done)](const Status& status) {
    if (!status.ok()) context->SetStatus(ForSession(status));
    done();
  };
  UnorderedCalls::Of(process_set()).Announce(std::move(call));
}

}  // namespace tfdist
