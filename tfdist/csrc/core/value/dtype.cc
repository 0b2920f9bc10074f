#include "core/value/dtype.h"

#include <cstddef>

#include "core/value/name_table.h"

namespace tfdist {
namespace {

struct DTypeRow {
  const char* name;
  int64_t bytes;
  bool floating;
  bool narrow;
};

constexpr DTypeRow kDTypeTable[] = {
#define TFDIST_DTYPE(id, name, Format) \
  {name, sizeof(Format::Stored), std::is_floating_point<Format::Sum>::value, kIsNarrow<Format>},
    TFDIST_DTYPES(TFDIST_DTYPE)
#undef TFDIST_DTYPE
};

constexpr DTypeRow kUnknownType = {"unknown", 0, false, false};

const DTypeRow& RowOf(DType dtype) {
  return IsKnown(dtype) ? kDTypeTable[static_cast<size_t>(dtype)] : kUnknownType;
}

}  // namespace

bool IsKnown(DType dtype) { return HasRow(kDTypeTable, dtype); }

bool FindDType(const std::string& name, DType* found) { return FindRow(kDTypeTable, name, found); }

int64_t SizeOf(DType dtype) { return RowOf(dtype).bytes; }

const char* NameOf(DType dtype) { return RowOf(dtype).name; }

bool IsFloating(DType dtype) { return RowOf(dtype).floating; }

bool IsNarrow(DType dtype) { return RowOf(dtype).narrow; }

}  // namespace tfdist
