// Adasum on the GPU: its kernels against the processor's arithmetic, and ranks against the engine.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/algorithm/adasum.h"
#include "cuda/adasum_pair.h"
#include "expect.h"
#include "part.h"
#include "rank.h"

using tfdist::AdasumPair;
using tfdist::AdasumProducts;
using tfdist::AdasumSpan;
using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DType;
using tfdist::kAdasumPiece;
using tfdist::KernelCache;
using tfdist::TensorView;

namespace {

constexpr int kProductBytes = sizeof(AdasumProducts);

// Alike enough on all ranks that the products matter.
double Entry(int rank, size_t tensor, size_t i) {
  const double place = static_cast<double>(i) + 17 * static_cast<double>(tensor);
  return (std::sin(place * 0.7) + 0.6 * std::cos(place * 0.31 * (rank + 1))) * (1 + rank);
}

std::vector<AdasumSpan> SpansOf(const std::vector<int64_t>& counts) {
  std::vector<AdasumSpan> spans;
  int64_t start = 0;
  for (int64_t count : counts) {
    spans.push_back({start, count});
    start += count + 8;  // what lies between is nobody's
  }
  return spans;
}

bool Near(double a, double b, double scale) { return std::fabs(a - b) <= 1e-12 * scale; }

template <typename T>
void CheckPair(const Gpu& gpu, AdasumPair* pair, DType type, const std::vector<AdasumSpan>& spans) {
  const int64_t count = spans.back().start + spans.back().count + 8;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  std::vector<T> a(static_cast<size_t>(count)), b(a);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<T>(Entry(0, 0, i));
    b[i] = static_cast<T>(Entry(1, 0, i));
  }
  const DeviceMemory at_a(gpu, bytes), at_b(gpu, bytes);
  const int64_t product_bytes = static_cast<int64_t>(spans.size()) * kProductBytes;
  const DeviceMemory at_products(gpu, product_bytes);
  at_a.Put(a.data(), bytes);
  at_b.Put(b.data(), bytes);
  double* const numbers = reinterpret_cast<double*>(at_products.data());
  std::vector<AdasumProducts> products(spans.size()), again(spans.size());
  for (std::vector<AdasumProducts>* seen : {&products, &again}) {
    Require(pair->Multiply(type, spans, at_a.data(), at_b.data(), numbers, gpu.stream()));
    at_products.Get(seen->data(), product_bytes);
  }
  EXPECT(std::memcmp(products.data(), again.data(), static_cast<size_t>(product_bytes)) == 0);
  Require(pair->Combine(type, spans, numbers, at_b.data(), at_a.data(), gpu.stream()));
  std::vector<T> result(a.size());
  at_a.Get(result.data(), bytes);
  for (size_t s = 0; s < spans.size(); ++s) {
    T* const of_a = a.data() + spans[s].start;
    const T* const of_b = b.data() + spans[s].start;
    const AdasumProducts expected = MultiplyParts(type, of_a, of_b, spans[s].count);
    const double scale = expected.aa + expected.bb;
    EXPECT(Near(products[s].ab, expected.ab, scale));
    EXPECT(Near(products[s].aa, expected.aa, scale));
    EXPECT(Near(products[s].bb, expected.bb, scale));
    CombineParts(type, products[s], of_b, spans[s].count, of_a);
  }
  EXPECT(std::memcmp(result.data(), a.data(), static_cast<size_t>(bytes)) == 0);
}

void CheckPairs(const Gpu& gpu) {
  KernelCache kernels(gpu.compiler(), "");
  std::unique_ptr<AdasumPair> pair;
  Require(AdasumPair::Open(gpu.driver(), gpu.facts(), &kernels, &pair));
  const std::vector<std::vector<int64_t>> lists = {
      {0},
      {4},
      {0, 8, kAdasumPiece - 4, kAdasumPiece, kAdasumPiece + 4, 0, 50 * kAdasumPiece, 8},
      std::vector<int64_t>(400, 12)};
  for (const std::vector<int64_t>& counts : lists) {
    CheckPair<float>(gpu, pair.get(), DType::kFloat32, SpansOf(counts));
    CheckPair<double>(gpu, pair.get(), DType::kFloat64, SpansOf(counts));
  }
}

// Against what the engine folds on the processor; and all ranks have the bits of rank 0.
void CheckRanks(Rank* rank, const std::vector<int64_t>& counts, Compression compression) {
  const DeviceTensors tensors(rank->gpu(), counts);
  std::vector<std::vector<float>> host;
  std::vector<TensorView> views;
  for (size_t t = 0; t < counts.size(); ++t) {
    host.emplace_back(static_cast<size_t>(counts[t]));
    for (size_t i = 0; i < host[t].size(); ++i) {
      host[t][i] = static_cast<float>(Entry(rank->rank(), t, i));
    }
    tensors.Put(t, host[t]);
  }
  for (std::vector<float>& values : host) views.push_back(ViewOf(&values));
  AllreduceOptions options = OptionsFor("adasum", views.size());
  options.reduction = tfdist::Reduction::kAdasum;
  options.compression = compression;
  EXPECT_EQ(rank->self().engine->Allreduce(options, views, views).message(), "");
  tfdist::AdasumCall call;
  call.compression = compression;
  rank->Meet();
  Require(rank->adasum()->Allreduce(call, tensors.views(), tensors.views(), rank->gpu().stream(),
                                    rank->wait()));
  rank->gpu().Synchronize(rank->gpu().stream());
  rank->Meet();
  const double tolerance = compression == Compression::kNone ? 0x1p-20 : 0x1p-9;
  for (size_t t = 0; t < counts.size(); ++t) {
    const std::vector<float> result = tensors.Get(t);
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT(std::fabs(result[i] - host[t][i]) <= tolerance * (1 + rank->size()));
    }
    std::vector<float> first = result;
    const TensorView view = ViewOf(&first);
    Require(rank->self().engine->Broadcast(BroadcastOptionsFor("bits", 1, 0), {view}));
    EXPECT(std::memcmp(first.data(), result.data(), result.size() * sizeof(float)) == 0);
  }
  rank->Meet();
}

void ShowTime(Rank* rank) {
  const DeviceTensors tensors(rank->gpu(), ResNet50());
  rank->Meet();
  const double seconds = MeanSeconds([&] {
    Require(rank->adasum()->Allreduce({}, tensors.views(), tensors.views(), rank->gpu().stream(),
                                      rank->wait()));
    rank->gpu().Synchronize(rank->gpu().stream());
  });
  rank->Meet();
  if (rank->rank() == 0) {
    PrintFigures(Format("%d rank(s), 102 MB: %.0f us", rank->size(), seconds * 1e6));
  }
}

}  // namespace

void TestAdasum(const Libraries& libraries) {
  CheckPairs(Gpu(libraries));
  PrintFigures("products and combination as on the processor, the same bits each time");
  const std::string sizes = RunRankCounts(libraries, [](Rank* rank) {
    rank->Open();
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      CheckRanks(rank, ResNet50(), compression);  // first: it takes the most memory
      CheckRanks(rank, {1, 7, 0, 13, 500, 2, 0, 3001, 1, 64}, compression);
    }
    ShowTime(rank);
    rank->Close();
  });
  PrintFigures("what the engine folds, on " + sizes + ", none and fp16");
}
