#include "nccl/wire_type.h"

namespace tfdist {

DType NcclWire(DType dtype, Compression compression) {
  const bool widened = dtype == DType::kBool || dtype == DType::kInt16 || dtype == DType::kUint16;
  return widened ? DType::kInt32 : WireType(dtype, compression);
}

NcclType ToNcclType(DType wire) {
  switch (wire) {
    case DType::kInt8:
      return NcclType::kInt8;
    case DType::kUint8:
      return NcclType::kUint8;
    case DType::kInt32:
      return NcclType::kInt32;
    case DType::kInt64:
      return NcclType::kInt64;
    case DType::kFloat16:
      return NcclType::kFloat16;
    case DType::kBfloat16:
      return NcclType::kBfloat16;
    case DType::kFloat64:
      return NcclType::kFloat64;
    case DType::kBool:  // NcclWire has widened these three
    case DType::kInt16:
    case DType::kUint16:
    case DType::kFloat32:
      break;
  }
  return NcclType::kFloat32;
}

NcclOperator ToNcclOperator(Reduction reduction, DType dtype) {
  const bool is_bool = dtype == DType::kBool;
  switch (reduction) {
    case Reduction::kMin:
      return NcclOperator::kMin;
    case Reduction::kMax:
      return NcclOperator::kMax;
    case Reduction::kProduct:
      return is_bool ? NcclOperator::kMin : NcclOperator::kProduct;
    default:
      return is_bool ? NcclOperator::kMax : NcclOperator::kSum;
  }
}

}  // namespace tfdist
