#include "tf/kernels/session_kernel.h"

#include <utility>

#include "core/engine/unordered_calls.h"
#include "tf/conversion.h"

namespace tfdist {

SessionKernel::SessionKernel(tensorflow::OpKernelConstruction* context)
    : CollectiveKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("_tfdist_key", &key_));
}

void SessionKernel::ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) {
  UnorderedCalls::Call call;
  call.key = key_;
  call.run = [this, context](Engine* engine) { return Run(context, engine, nullptr); };
  call.done = [context, done = std::move(done)](const Status& status) {
    if (!status.ok()) context->SetStatus(ToTensorFlow(status));
    done();
  };
  UnorderedCalls::Of(process_set()).Announce(std::move(call));
}

}  // namespace tfdist
