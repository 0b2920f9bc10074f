#include "core/value/dtype.h"

#include <cstddef>

#include "core/value/name_table.h"

namespace tfdist {
namespace {

struct DTypeRow {
  const char* name;
  int64_t bytes;
  bool floating;
};

// In the order of the enumeration.
constexpr DTypeRow kDTypeTable[] = {
    {"bool", 1, false},    {"uint8", 1, false},  {"int8", 1, false},   {"uint16", 2, false},
    {"int16", 2, false},   {"int32", 4, false},  {"int64", 8, false},  {"float16", 2, true},
    {"bfloat16", 2, true}, {"float32", 4, true}, {"float64", 8, true},
};

}  // namespace

bool IsKnown(DType dtype) { return HasRow(kDTypeTable, dtype); }

bool FindDType(const std::string& name, DType* found) { return FindRow(kDTypeTable, name, found); }

int64_t SizeOf(DType dtype) {
  return IsKnown(dtype) ? kDTypeTable[static_cast<size_t>(dtype)].bytes : 0;
}

const char* NameOf(DType dtype) {
  return IsKnown(dtype) ? kDTypeTable[static_cast<size_t>(dtype)].name : "unknown";
}

bool IsFloating(DType dtype) {
  return IsKnown(dtype) && kDTypeTable[static_cast<size_t>(dtype)].floating;
}

bool IsNarrow(DType dtype) { return IsFloating(dtype) && SizeOf(dtype) < SizeOf(DType::kFloat32); }

}  // namespace tfdist
