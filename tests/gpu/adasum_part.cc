// Adasum of tensors on the GPU, through the host's memory: ranks against the engine.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "expect.h"
#include "part.h"
#include "rank.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DeviceReduce;
using tfdist::Reduction;
using tfdist::TensorView;

namespace {

// Alike enough on all ranks that the products matter.
double Entry(int rank, size_t tensor, size_t i) {
  const double place = static_cast<double>(i) + 17 * static_cast<double>(tensor);
  return (std::sin(place * 0.7) + 0.6 * std::cos(place * 0.31 * (rank + 1))) * (1 + rank);
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
  options.reduction = Reduction::kAdasum;
  options.compression = compression;
  EXPECT_EQ(rank->self().engine->Allreduce(options, views, views).message(), "");
  DeviceReduce reduce;
  reduce.reduction = Reduction::kAdasum;
  reduce.compression = compression;
  rank->Meet();
  rank->Reduce(reduce, tensors);
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
  DeviceReduce reduce;
  reduce.reduction = Reduction::kAdasum;
  rank->Meet();
  const double seconds = MeanSeconds([&] { rank->Reduce(reduce, tensors); });
  rank->Meet();
  if (rank->rank() == 0) {
    PrintFigures(Format("%d rank(s), 102 MB: %.0f us", rank->size(), seconds * 1e6));
  }
}

}  // namespace

void TestAdasum(const Libraries& libraries) {
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
