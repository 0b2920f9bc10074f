// The kernels of TfdistGroupedBroadcast and TfdistBroadcastVariables.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/conversion.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/session_kernel.h"

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

template <typename Kernel>
class GroupedBroadcastKernel : public Kernel {
 public:
  explicit GroupedBroadcastKernel(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

 protected:
  Status Run(OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    std::vector<TensorView> inputs, outputs(context->num_outputs());
    TFDIST_RETURN_IF_ERROR(ViewInputs(*context, context->num_outputs(), &inputs));
    for (int i = 0; i < context->num_outputs(); ++i) {
      TFDIST_RETURN_IF_ERROR(ForwardOrAllocate(context, i, &outputs[i]));
    }
    return engine->Broadcast(options_, inputs, outputs, gpu);
  }

 private:
  BroadcastOptions options_;
};

using Variables = std::vector<tensorflow::core::RefCountPtr<Var>>;

// Sorted by address: every kernel locks in the same order, and one variable given twice is locked
// once.
std::vector<Var*> Distinct(const Variables& variables) {
  std::vector<Var*> distinct;
  for (const auto& variable : variables) distinct.push_back(variable.get());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

// What the variables are to hold once a GPU has written it, and themselves.
struct Received {
  Variables variables;
  std::vector<Tensor> values;

  // Readers have either the old values or the new ones.
  void Assign() const {
    for (size_t i = 0; i < variables.size(); ++i) {
      tensorflow::mutex_lock lock(*variables[i]->mu());
      *variables[i]->tensor() = values[i];
    }
  }
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

template <typename Kernel>
class BroadcastVariablesKernel : public Kernel {
 public:
  explicit BroadcastVariablesKernel(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, ReadOptions(context, &options_));
  }

 protected:
  Status Run(OpKernelContext* context, Engine* engine, OnGpu* gpu) override {
    // The last input only keeps the order.
    Variables variables(context->num_inputs() - 1);
    for (int i = 0; i < static_cast<int>(variables.size()); ++i) {
      const absl::Status found =
          LookupResource(context, tensorflow::HandleFromInput(context, i), &variables[i]);
      if (!found.ok()) return FromTensorFlow(found);
    }
    if (gpu != nullptr) return Receive(context, engine, std::move(variables), gpu);
    const std::vector<Var*> distinct = Distinct(variables);
    for (Var* variable : distinct) variable->mu()->lock();
    const Status status = Overwrite(context, engine, variables);
    for (Var* variable : distinct) variable->mu()->unlock();
    return status;
  }

 private:
  // No lock is held while the GPU works: others may read the old values until it is done.
  Status Receive(OpKernelContext* context, Engine* engine, Variables variables, OnGpu* gpu) {
    const auto received = std::make_shared<Received>();
    std::vector<TensorView> inputs(variables.size()), outputs(variables.size());
    std::vector<Tensor> kept;  // the old values, until the GPU has sent them
    for (size_t i = 0; i < variables.size(); ++i) {
      tensorflow::tf_shared_lock lock(*variables[i]->mu());
      kept.push_back(*variables[i]->tensor());
      Tensor value;
      TFDIST_RETURN_IF_ERROR(
          FromTensorFlow(context->allocate_temp(kept.back().dtype(), kept.back().shape(), &value)));
      TFDIST_RETURN_IF_ERROR(ToTensorView(kept.back(), &inputs[i]));
      TFDIST_RETURN_IF_ERROR(ToTensorView(value, &outputs[i]));
      received->values.push_back(value);
    }
    received->variables = std::move(variables);
    gpu->done = [received, kept, done = gpu->done](const Status& status) {
      if (status.ok()) received->Assign();
      done(status);
    };
    return engine->Broadcast(options_, inputs, outputs, gpu);
  }

  Status Overwrite(OpKernelContext* context, Engine* engine, const Variables& variables) {
    std::vector<TensorView> views(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      TFDIST_RETURN_IF_ERROR(FromTensorFlow(MakeExclusive(context, variables[i].get())));
      TFDIST_RETURN_IF_ERROR(ToTensorView(*variables[i]->tensor(), &views[i]));
    }
    return engine->Broadcast(options_, views);
  }

  BroadcastOptions options_;
};

TFDIST_REGISTER_COLLECTIVE("TfdistGroupedBroadcast", GroupedBroadcastKernel, );
TFDIST_REGISTER_IN_SESSION("TfdistGroupedBroadcast", GroupedBroadcastKernel);
TFDIST_REGISTER_COLLECTIVE("TfdistBroadcastVariables", BroadcastVariablesKernel,
                           .HostMemory("variables"));

}  // namespace
}  // namespace tfdist
