// The types that collectives carry, as REGISTER_OP takes them. ToDType (tf/conversion.h) has their
// numbers.
#ifndef TFDIST_TF_OPS_ELEMENT_TYPES_H_
#define TFDIST_TF_OPS_ELEMENT_TYPES_H_

#define TFDIST_ELEMENT_TYPES \
  "{bool, uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}"

#endif  // TFDIST_TF_OPS_ELEMENT_TYPES_H_
