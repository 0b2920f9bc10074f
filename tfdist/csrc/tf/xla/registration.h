// Registers the XLA kernels of ops. Has none.
//
// As ordinary kernels for the devices that stand for XLA. REGISTER_XLA_OP would do the same, but
// TensorFlow looks at what it registered only once, when a process first compiles something; a
// library that is loaded later would come too late.
#ifndef TFDIST_TF_XLA_REGISTRATION_H_
#define TFDIST_TF_XLA_REGISTRATION_H_

#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op_kernel.h"

#define TFDIST_REGISTER(op, device, kernel) REGISTER_KERNEL_BUILDER(Name(op).Device(device), kernel)

// Collectives that XLA compiles.
#define TFDIST_REGISTER_COMPILED(device, kernel)                 \
  TFDIST_REGISTER("TfdistGroupedAllreduce", device, kernel);     \
  TFDIST_REGISTER("TfdistStartAllreduce", device, kernel);       \
  TFDIST_REGISTER("TfdistAwait", device, kernel);                \
  TFDIST_REGISTER("TfdistGroupedReducescatter", device, kernel); \
  TFDIST_REGISTER("TfdistGroupedAllgather", device, kernel);     \
  TFDIST_REGISTER("TfdistGroupedBroadcast", device, kernel);     \
  TFDIST_REGISTER("TfdistBroadcastVariables", device, kernel);   \
  TFDIST_REGISTER("TfdistBarrier", device, kernel);              \
  TFDIST_REGISTER("TfdistTopology", device, kernel)

// Collectives that XLA compiles on no device: ROW(name, why, and what to do).
#define TFDIST_REFUSED_COLLECTIVES(ROW)                                                           \
  ROW(Alltoall,                                                                                   \
      "the number of rows that alltoall returns is known only at run time. Call tfdist.alltoall " \
      "outside the function with jit_compile=True.")                                              \
  ROW(Join,                                                                                       \
      "join runs whatever the other ranks submit. Call tfdist.join outside the function with "    \
      "jit_compile=True.")

#endif  // TFDIST_TF_XLA_REGISTRATION_H_
