// The CPU kernels of TfdistGroupedBroadcast and TfdistBroadcastVariables.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/conversion.h"

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

class GroupedBroadcastKernel : public tensorflow::OpKernel {
 public:
  explicit GroupedBroadcastKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(CurrentEngine(&engine)));
    std::vector<TensorView> tensors(context->num_outputs());
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Tensor& input = context->input(i);
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({i}, i, input.shape(), &output));
      OP_REQUIRES_OK(context, ToTensorFlow(ToTensorView(*output, &tensors[i])));
      const bool sends = engine->communicator().rank() == options_.root;
      if (sends && output->data() != input.data() && tensors[i].bytes() > 0) {
        std::memcpy(output->data(), input.data(), tensors[i].bytes());
      }
    }
    OP_REQUIRES_OK(context, ToTensorFlow(engine->Broadcast(options_, tensors)));
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

class BroadcastVariablesKernel : public tensorflow::OpKernel {
 public:
  explicit BroadcastVariablesKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, ToTensorFlow(CurrentEngine(&engine)));
    // The last input only keeps the order.
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(context->num_inputs() - 1);
    for (int i = 0; i < static_cast<int>(variables.size()); ++i) {
      OP_REQUIRES_OK(
          context, LookupResource(context, tensorflow::HandleFromInput(context, i), &variables[i]));
    }
    const std::vector<Var*> distinct = Distinct(variables);
    for (Var* variable : distinct) variable->mu()->lock();
    const absl::Status status = Overwrite(context, engine.get(), variables);
    for (Var* variable : distinct) variable->mu()->unlock();
    OP_REQUIRES_OK(context, status);
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

  absl::Status Overwrite(OpKernelContext* context, Engine* engine,
                         const std::vector<tensorflow::core::RefCountPtr<Var>>& variables) {
    std::vector<TensorView> views(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      TF_RETURN_IF_ERROR(MakeExclusive(context, variables[i].get()));
      TF_RETURN_IF_ERROR(ToTensorFlow(ToTensorView(*variables[i]->tensor(), &views[i])));
    }
    return ToTensorFlow(engine->Broadcast(options_, views));
  }

  BroadcastOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistGroupedBroadcast").Device(tensorflow::DEVICE_CPU),
                        GroupedBroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistBroadcastVariables").Device(tensorflow::DEVICE_CPU),
                        BroadcastVariablesKernel);

}  // namespace
}  // namespace tfdist
