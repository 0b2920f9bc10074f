// The types that float32 and float64 tensors may have on the wire: one table, from which names and
// limits follow. Casts nothing; that is core/value/cast.h.
#ifndef TFDIST_CORE_VALUE_COMPRESSION_H_
#define TFDIST_CORE_VALUE_COMPRESSION_H_

#include <string>

#include "core/value/dtype.h"
#include "core/value/export.h"

namespace tfdist {

// ROW(enumerator, name, type on the wire); kNone leaves each type as it is. Ranks compare the
// place of a row, so a new one comes last.
#define TFDIST_COMPRESSIONS(ROW)      \
  ROW(kNone, "none", DType::kFloat32) \
  ROW(kFp16, "fp16", DType::kFloat16) \
  ROW(kBf16, "bf16", DType::kBfloat16)

enum class Compression {
#define TFDIST_COMPRESSION(id, name, wire) id,
  TFDIST_COMPRESSIONS(TFDIST_COMPRESSION)
#undef TFDIST_COMPRESSION
};

// "none", "fp16", ...
const char* NameOf(Compression compression);

// False where no compression has this name.
TFDIST_API bool FindCompression(const std::string& name, Compression* found);

// Whether it is in the table; another build may have written one that this build lacks.
bool IsKnown(Compression compression);

// The type that travels for a tensor of type `dtype`.
DType WireType(DType dtype, Compression compression);

// "none=,fp16=float16,...": each name with its type, for other languages.
std::string DescribeCompressions();

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_COMPRESSION_H_
