// A call as bytes, for ranks that have joined and must take part in what the others submit.
// Holds what execution needs, and no data. The bytes come from a rank of the same job and build.
#ifndef TFDIST_CORE_AGREE_CALL_RECORD_H_
#define TFDIST_CORE_AGREE_CALL_RECORD_H_

#include <string>
#include <vector>

#include "core/value/call.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"

namespace tfdist {

// A call that owns what it refers to. Not to be copied: `call` points into it.
struct ReceivedCall {
  ReceivedCall() = default;
  ReceivedCall(const ReceivedCall&) = delete;
  ReceivedCall& operator=(const ReceivedCall&) = delete;

  Call call;
  std::vector<std::string> tensor_names;
  std::vector<TensorView> tensors;  // without memory
};

std::string Encode(const Call& call);

// kInternal when the bytes are not what Encode made of a call; then `received` has no meaning.
Status Decode(const std::string& bytes, ReceivedCall* received);

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_CALL_RECORD_H_
