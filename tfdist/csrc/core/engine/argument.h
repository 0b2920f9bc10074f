// Finds wrong arguments of a collective on this rank, before anything is sent. Compares no ranks.
// Each function returns a text that says what was received, what is expected and what to do; empty
// when all is well. Pure.
#ifndef TFDIST_CORE_ENGINE_ARGUMENT_H_
#define TFDIST_CORE_ENGINE_ARGUMENT_H_

#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/value/tensor_view.h"

namespace tfdist {

std::string CheckAllreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs);
std::string CheckBroadcast(const BroadcastOptions& options, const std::vector<TensorView>& inputs,
                           const std::vector<TensorView>& outputs, const Topology& topology);
std::string CheckReduceScatter(const AllreduceOptions& options,
                               const std::vector<TensorView>& inputs,
                               const std::vector<TensorView>& outputs, const Topology& topology);
std::string CheckAllgather(const GatherOptions& options, const std::vector<TensorView>& inputs);
std::string CheckAlltoall(const std::string& name, const TensorView& input,
                          const std::vector<int64_t>& splits, int size);

// Of a process set among `size` ranks.
std::string CheckRanks(const std::vector<int>& ranks, int size);

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_ARGUMENT_H_
