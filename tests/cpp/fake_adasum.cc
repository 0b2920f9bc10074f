#include "fake_adasum.h"

#include <algorithm>

#include "core/algorithm/adasum.h"
#include "cuda/adasum_kernels.h"

using tfdist::AdasumProducts;
using tfdist::AdasumTable;
using tfdist::DType;

namespace {

constexpr const char* kProducts = "adasum_products_";
constexpr const char* kCombine = "adasum_combine_";
constexpr const char* kSum = "adasum_sum";

bool Begins(const std::string& name, const std::string& start) {
  return name.compare(0, start.size(), start) == 0;
}

template <typename T>
T Argument(void** arguments, int index) {
  return *static_cast<T*>(arguments[index]);
}

// The products of each piece that the table has.
void Multiply(const AdasumTable& table, int spans, DType type, const char* a, const char* b,
              AdasumProducts* partials) {
  for (int s = 0; s < spans; ++s) {
    for (int piece = table.pieces[s]; piece < table.pieces[s + 1]; ++piece) {
      const int64_t first = (piece - table.pieces[s]) * tfdist::kAdasumPiece;
      const int64_t at = (table.starts[s] + first) * SizeOf(type);
      const int64_t count = std::min(tfdist::kAdasumPiece, table.counts[s] - first);
      partials[piece] = MultiplyParts(type, a + at, b + at, count);
    }
  }
}

void AddUp(const AdasumTable& table, int spans, const AdasumProducts* partials,
           AdasumProducts* products) {
  for (int s = 0; s < spans; ++s) {
    AdasumProducts sum;
    for (int piece = table.pieces[s]; piece < table.pieces[s + 1]; ++piece) {
      sum.ab += partials[piece].ab;
      sum.aa += partials[piece].aa;
      sum.bb += partials[piece].bb;
    }
    products[s] = sum;
  }
}

void Combine(const AdasumTable& table, int spans, DType type, const AdasumProducts* products,
             const char* b, char* a) {
  for (int s = 0; s < spans; ++s) {
    const int64_t at = table.starts[s] * SizeOf(type);
    CombineParts(type, products[s], b + at, table.counts[s], a + at);
  }
}

}  // namespace

bool IsAdasumKernel(const std::string& name) {
  const std::string source = tfdist::AdasumKernels();
  const std::string type = name.substr(name.rfind('_') + 1);
  const bool typed = Begins(name, kProducts) || Begins(name, kCombine);
  const std::string text = typed ? "KERNELS(" + type + "," : "void " + name + "(";
  return Begins(name, "adasum_") && source.find(text) != std::string::npos;
}

std::function<void()> AdasumWork(const std::string& name, void** arguments) {
  const auto table = Argument<AdasumTable>(arguments, 0);
  const int spans = Argument<int>(arguments, 1);
  const bool is_double = name.substr(name.rfind('_') + 1) == "float64";
  const DType type = is_double ? DType::kFloat64 : DType::kFloat32;
  if (name == kSum) {
    const auto partials = Argument<const AdasumProducts*>(arguments, 2);
    const auto products = Argument<AdasumProducts*>(arguments, 3);
    return [=] { AddUp(table, spans, partials, products); };
  }
  if (Begins(name, kProducts)) {
    const auto a = Argument<const char*>(arguments, 2), b = Argument<const char*>(arguments, 3);
    const auto partials = Argument<AdasumProducts*>(arguments, 4);
    return [=] { Multiply(table, spans, type, a, b, partials); };
  }
  const auto products = Argument<const AdasumProducts*>(arguments, 2);
  const auto b = Argument<const char*>(arguments, 3);
  const auto a = Argument<char*>(arguments, 4);
  return [=] { Combine(table, spans, type, products, b, a); };
}
