// Finds wrong arguments of a collective on this rank, before anything is sent. Compares no ranks.
// Each function returns a text that says what was received, what is expected and what to do; empty
// when all is well. Pure.
#ifndef TFDIST_CORE_ARGUMENT_H_
#define TFDIST_CORE_ARGUMENT_H_

#include <string>
#include <vector>

#include "core/engine.h"
#include "core/tensor_view.h"

namespace tfdist {

std::string CheckAllreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs);
std::string CheckBroadcast(const BroadcastOptions& options, const std::vector<TensorView>& tensors,
                           int size);
std::string CheckAllgather(const std::string& name, const TensorView& input);

}  // namespace tfdist

#endif  // TFDIST_CORE_ARGUMENT_H_
