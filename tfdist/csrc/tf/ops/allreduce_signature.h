// The inputs and attributes that the two ops of an allreduce have in common, for REGISTER_OP.
#ifndef TFDIST_TF_OPS_ALLREDUCE_SIGNATURE_H_
#define TFDIST_TF_OPS_ALLREDUCE_SIGNATURE_H_

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/element_types.h"

#define TFDIST_ALLREDUCE_SIGNATURE                         \
  Input("tensors: dtypes")                                 \
      .Input("prescale: double")                           \
      .Input("postscale: double")                          \
      .Input("weight: int64")                              \
      .Input("order: resource")                            \
      .Attr("dtypes: list(" TFDIST_ELEMENT_TYPES ") >= 1") \
      .Attr("reduction: string")                           \
      .Attr("compression: string = 'none'")                \
      .Attr("weighted: bool = false")                      \
      .Attr("process_set: int = 0")                        \
      .Attr("label: string")                               \
      .Attr("tensor_names: list(string)")                  \
      .SetIsStateful()

namespace tfdist {

// The first outputs have the shapes of the tensors; the inputs behind those are scalars.
inline absl::Status AllreduceShapes(tensorflow::shape_inference::InferenceContext* context,
                                    int tensors) {
  tensorflow::shape_inference::ShapeHandle unused;
  for (int scalar = tensors; scalar < context->num_inputs(); ++scalar) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(scalar), 0, &unused));
  }
  for (int i = 0; i < tensors; ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

}  // namespace tfdist

#endif  // TFDIST_TF_OPS_ALLREDUCE_SIGNATURE_H_
