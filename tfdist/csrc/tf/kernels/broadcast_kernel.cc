// The CPU kernels of TfdistGroupedBroadcast and TfdistBroadcastVariables.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"

namespace tfdist {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

absl::Status ReadOptions(OpKernelConstruction* context, BroadcastOptions* options) {
  TF_RETURN_IF_ERROR(context->GetAttr("root_rank", &options->root));
  TF_RETURN_IF_ERROR(context->GetAttr("label", &options->name));
  return context->GetAttr("tensor_names", &options->tensor_names);
}

class GroupedBroadcastKernel : public CollectiveKernel {
 public:
  explicit GroupedBroadcastKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

 protected:
  Status Run(OpKernelContext* context, Engine* engine) override {
    const Topology& topology = engine->communicator().topology();
    const bool sends = topology.world_ranks[topology.rank] == options_.root;
    std::vector<TensorView> tensors(context->num_outputs());
    for (int i = 0; i < context->num_outputs(); ++i) {
      TFDIST_RETURN_IF_ERROR(ForwardOrAllocate(context, i, &tensors[i]));
      const void* input = context->input(i).data();
      if (sends && tensors[i].data != input && tensors[i].bytes() > 0) {
        std::memcpy(tensors[i].data, input, tensors[i].bytes());
      }
    }
    return engine->Broadcast(options_, tensors);
  }

 private:
  BroadcastOptions options_;
};

// Makes the variable's buffer its own, so that overwriting it changes no tensor read from it
// earlier.
absl::Status MakeExclusive(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  if (tensor->TotalBytes() > 0) std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
}

class BroadcastVariablesKernel : public CollectiveKernel {
 public:
  explicit BroadcastVariablesKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

 protected:
  Status Run(OpKernelContext* context, Engine* engine) override {
    // The last input only keeps the order.
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(context->num_inputs() - 1);
    for (int i = 0; i < static_cast<int>(variables.size()); ++i) {
      const absl::Status found =
          LookupResource(context, tensorflow::HandleFromInput(context, i), &variables[i]);
      if (!found.ok()) return FromTensorFlow(found);
    }
    const std::vector<Var*> distinct = Distinct(variables);
    for (Var* variable : distinct) variable->mu()->lock();
    const Status status = Overwrite(context, engine, variables);
    for (Var* variable : distinct) variable->mu()->unlock();
    return status;
  }

 private:
  // Sorted by address: every kernel locks in the same order, and one variable given twice is locked
  // once.
  static std::vector<Var*> Distinct(
      const std::vector<tensorflow::core::RefCountPtr<Var>>& variables) {
    std::vector<Var*> distinct;
    for (const auto& variable : variables) distinct.push_back(variable.get());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    return distinct;
  }

  Status Overwrite(OpKernelContext* context, Engine* engine,
                   const std::vector<tensorflow::core::RefCountPtr<Var>>& variables) {
    std::vector<TensorView> views(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      TFDIST_RETURN_IF_ERROR(FromTensorFlow(MakeExclusive(context, variables[i].get())));
      TFDIST_RETURN_IF_ERROR(ToTensorView(*variables[i]->tensor(), &views[i]));
    }
    return engine->Broadcast(options_, views);
  }

  BroadcastOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedBroadcast").Device(tensorflow::DEVICE_CPU),
                        GroupedBroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistBroadcastVariables").Device(tensorflow::DEVICE_CPU),
                        BroadcastVariablesKernel);

}  // namespace
}  // namespace tfdist
