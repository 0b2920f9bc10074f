// The XLA kernels of the ops, as far as they are the same on every platform: each becomes a typed
// FFI custom call, run by the platform's handlers. Registers none.
//
// XLA keeps no order among calls that do not depend on each other, so each takes and returns a
// token. Between the calls it is the value of the variable behind the op's input `order`: a kernel
// reads it, hands it to its call, and assigns what the call returns. TensorFlow compiles the ops of
// a graph in the order of their control edges and carries variables through functions, conditionals
// and loops, so the calls are chained there as everywhere else.
#ifndef TFDIST_TF_XLA_COLLECTIVE_CALL_H_
#define TFDIST_TF_XLA_COLLECTIVE_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/place/topology.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tfdist {

// The attributes of a call, as text that XLA parses.
class Attributes {
 public:
  void Add(const std::string& name, int64_t value);
  void Add(const std::string& name, double value);
  void Add(const std::string& name, const std::string& value);
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void AddText(const std::string& name, const std::string& value);

  std::string text_;
};

// Take the attribute of this name from the op.
absl::Status CopyText(tensorflow::OpKernelConstruction* context, const char* name,
                      Attributes* attributes);
absl::Status CopyNumber(tensorflow::OpKernelConstruction* context, const char* name,
                        Attributes* attributes);
absl::Status CopyFlag(tensorflow::OpKernelConstruction* context, const char* name,
                      Attributes* attributes);

struct CallSpec {
  const char* target = nullptr;
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> results;
  std::string attributes;
  // How many of the last results are the operands of the same place, in their memory.
  int in_place = 0;
  // Where among those that it does not depend on.
  xla::CustomCallSchedule schedule = xla::CustomCallSchedule::SCHEDULE_NONE;
};

// Adds a call with row-major operands and results; returns what it returns.
absl::StatusOr<std::vector<xla::XlaOp>> AddCall(xla::XlaBuilder* builder, const CallSpec& spec);

// The ranks of a process set, and which of them this is, while it is compiled.
absl::StatusOr<const Topology> FindTopology(int64_t process_set);

// What the kernels of all collectives have in common. The last input is `order`.
class CollectiveCall : public tensorflow::XlaOpKernel {
 public:
  CollectiveCall(tensorflow::OpKernelConstruction* context, const char* target);

  void Compile(tensorflow::XlaOpKernelContext* context) final;

 protected:
  virtual absl::Status CompileOrFail(tensorflow::XlaOpKernelContext* context) = 0;

  Attributes& attributes() { return attributes_; }
  int64_t process_set() const { return process_set_; }

  // Adds the call after all earlier ones. `results` are the shapes of what it returns.
  absl::StatusOr<std::vector<xla::XlaOp>> AddOrderedCall(tensorflow::XlaOpKernelContext* context,
                                                         std::vector<xla::XlaOp> operands,
                                                         std::vector<xla::Shape> results,
                                                         const Attributes& attributes) const;

  // The same for a call of another target, schedule and number of tensors in place.
  static absl::StatusOr<std::vector<xla::XlaOp>> AddOrderedCall(
      tensorflow::XlaOpKernelContext* context, CallSpec spec);

  // All inputs but `order`.
  static std::vector<xla::XlaOp> Operands(tensorflow::XlaOpKernelContext* context);

  static absl::StatusOr<std::vector<xla::Shape>> ShapesOf(xla::XlaBuilder* builder,
                                                          const std::vector<xla::XlaOp>& values,
                                                          int count);

  static void SetOutputs(tensorflow::XlaOpKernelContext* context,
                         const std::vector<xla::XlaOp>& values);

 private:
  const char* const target_;
  const bool on_gpu_;
  int64_t process_set_ = 0;
  Attributes attributes_;
};

// Allreduce and reducescatter. This is their form on the CPU, where all inputs are operands.
class ReductionCall : public CollectiveCall {
 public:
  ReductionCall(tensorflow::OpKernelConstruction* context, const char* target);

 protected:
  absl::Status CompileOrFail(tensorflow::XlaOpKernelContext* context) override;

  // Of the results, for tensors of these shapes.
  virtual absl::StatusOr<std::vector<xla::Shape>> Reduced(std::vector<xla::Shape> shapes) const;

  // How many are reduced: the first inputs.
  int tensors() const { return tensors_; }

  // The outputs; one more, where the op has it, is the number of the call, which nobody looks at.
  void SetReduced(tensorflow::XlaOpKernelContext* context, const std::vector<xla::XlaOp>& results);

 private:
  int tensors_ = 0;
};

class AllreduceCall : public ReductionCall {
 public:
  explicit AllreduceCall(tensorflow::OpKernelConstruction* context);
};

// Of a platform where the collective is done when its call is: there is nothing to await.
class AwaitCall : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override;
};

class ReducescatterCall : public ReductionCall {
 public:
  explicit ReducescatterCall(tensorflow::OpKernelConstruction* context);

 protected:
  absl::StatusOr<std::vector<xla::Shape>> Reduced(std::vector<xla::Shape> shapes) const override;
};

// Every rank gives as many rows as this one: the handler sees to it.
class AllgatherCall : public CollectiveCall {
 public:
  explicit AllgatherCall(tensorflow::OpKernelConstruction* context);

 protected:
  absl::Status CompileOrFail(tensorflow::XlaOpKernelContext* context) override;
};

class BroadcastCall : public CollectiveCall {
 public:
  explicit BroadcastCall(tensorflow::OpKernelConstruction* context);

 protected:
  absl::Status CompileOrFail(tensorflow::XlaOpKernelContext* context) override;
};

class BroadcastVariablesCall : public CollectiveCall {
 public:
  explicit BroadcastVariablesCall(tensorflow::OpKernelConstruction* context);

 protected:
  absl::Status CompileOrFail(tensorflow::XlaOpKernelContext* context) override;
};

}  // namespace tfdist

#endif  // TFDIST_TF_XLA_COLLECTIVE_CALL_H_
