// The types in which tensors travel between GPUs, and what NCCL calls them. Pure.
#ifndef TFDIST_NCCL_WIRE_TYPE_H_
#define TFDIST_NCCL_WIRE_TYPE_H_

#include "core/value/compression.h"
#include "core/value/dtype.h"
#include "core/value/reduction.h"
#include "nccl/nccl_api.h"

namespace tfdist {

// Of a tensor that is reduced: some types that NCCL does not reduce travel as int32.
DType NcclWire(DType dtype, Compression compression);

// `wire` is an NcclWire.
NcclType ToNcclType(DType wire);

// The sum of bools is "or" and their product "and", as on the processor. An average is a sum here,
// divided by whoever asked for it.
NcclOperator ToNcclOperator(Reduction reduction, DType dtype);

}  // namespace tfdist

#endif  // TFDIST_NCCL_WIRE_TYPE_H_
