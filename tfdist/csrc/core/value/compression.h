// The types that float32 and float64 tensors may have on the wire: one table, from which names and
// limits follow. Casts nothing; that is core/value/cast.h.
#ifndef TFDIST_CORE_VALUE_COMPRESSION_H_
#define TFDIST_CORE_VALUE_COMPRESSION_H_

#include <string>

#include "core/value/dtype.h"

namespace tfdist {

// The place of its row in the table. Ranks compare the number, so a new one comes last.
enum class Compression { kNone, kFp16, kBf16 };

// "none", "fp16", ...
const char* NameOf(Compression compression);

// False where no compression has this name.
bool FindCompression(const std::string& name, Compression* found);

// Whether it is in the table; another build may have written one that this build lacks.
bool IsKnown(Compression compression);

// The type that travels for a tensor of type `dtype`.
DType WireType(DType dtype, Compression compression);

// "none=,fp16=float16,...": each name with its type, for other languages.
std::string DescribeCompressions();

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_COMPRESSION_H_
