#include "core/value/compression.h"

#include <cstddef>
#include <iterator>

#include "core/value/name_table.h"

namespace tfdist {
namespace {

struct CompressionRow {
  const char* name;
  DType wire;
};

constexpr CompressionRow kCompressionTable[] = {
#define TFDIST_COMPRESSION(id, name, wire) {name, wire},
    TFDIST_COMPRESSIONS(TFDIST_COMPRESSION)
#undef TFDIST_COMPRESSION
};

}  // namespace

const char* NameOf(Compression compression) {
  return kCompressionTable[static_cast<size_t>(compression)].name;
}

bool FindCompression(const std::string& name, Compression* found) {
  return FindRow(kCompressionTable, name, found);
}

bool IsKnown(Compression compression) { return HasRow(kCompressionTable, compression); }

DType WireType(DType dtype, Compression compression) {
  const bool compressible = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  if (!compressible || compression == Compression::kNone) return dtype;
  return kCompressionTable[static_cast<size_t>(compression)].wire;
}

std::string DescribeCompressions() {
  std::string text = "none=";
  for (size_t i = 1; i < std::size(kCompressionTable); ++i) {
    text += std::string(",") + kCompressionTable[i].name + "=" + NameOf(kCompressionTable[i].wire);
  }
  return text;
}

}  // namespace tfdist
