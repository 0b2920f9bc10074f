// Ranks that share one GPU, as threads: the fused allreduce of exactly summable inputs, its time
// beside that of NCCL alone, and a new beginning after a collective that nobody answered.
#include <functional>
#include <string>
#include <vector>

#include "expect.h"
#include "nccl/device_collective.h"
#include "part.h"
#include "rank.h"

using tfdist::Compression;
using tfdist::DeviceReduce;
using tfdist::DType;
using tfdist::NcclOperator;
using tfdist::NcclType;
using tfdist::Packer;

namespace {

float Value(int rank, size_t tensor, size_t i) {
  return static_cast<float>((i + 3 * static_cast<size_t>(rank) + tensor) % 8);
}

float SumAt(int size, size_t tensor, size_t i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += Value(r, tensor, i);
  return sum;
}

DeviceReduce With(Compression compression) {
  DeviceReduce reduce;
  reduce.compression = compression;
  reduce.fusion_threshold_bytes = 8 << 20;
  return reduce;
}

// All of it in one bucket, as NCCL alone has one call.
DeviceReduce InOne(Compression compression) {
  DeviceReduce reduce = With(compression);
  reduce.fusion_threshold_bytes = int64_t{1} << 30;
  return reduce;
}

void CheckSums(Rank* rank, const std::vector<int64_t>& counts, const DeviceReduce& reduce) {
  const DeviceTensors tensors(rank->gpu(), counts);
  for (size_t t = 0; t < counts.size(); ++t) {
    std::vector<float> values(static_cast<size_t>(counts[t]));
    for (size_t i = 0; i < values.size(); ++i) values[i] = Value(rank->rank(), t, i);
    tensors.Put(t, values);
  }
  rank->Meet();
  rank->Reduce(reduce, tensors);
  for (size_t t = 0; t < counts.size(); ++t) {
    const std::vector<float> sums = tensors.Get(t);
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], SumAt(rank->size(), t, i));
  }
  rank->Meet();
}

// The fused allreduce of 100 MB, and NCCL's part of it: one call for all that travels.
void ShowTime(Rank* rank, Compression compression) {
  const Gpu& gpu = rank->gpu();
  const DeviceTensors tensors(gpu, ResNet50());
  const DType wire = WireType(DType::kFloat32, compression);
  const int64_t size = Packer::BufferCount(tensors.views());
  const DeviceMemory buffer(gpu, size * SizeOf(wire));
  const NcclType type = wire == DType::kFloat32 ? NcclType::kFloat32 : NcclType::kFloat16;
  rank->Meet();
  const double fused = MeanSeconds([&] { rank->Reduce(InOne(compression), tensors); });
  const double alone = MeanSeconds([&] {
    Require(rank->ranks()->AllReduce(buffer.data(), buffer.data(), static_cast<size_t>(size), type,
                                     NcclOperator::kSum, gpu.stream(), rank->wait()));
    gpu.Synchronize(gpu.stream());
  });
  rank->Meet();
  if (rank->rank() != 0) return;
  PrintFigures(Format(
      "%d rank(s), 102 MB, %s: fused %.0f us, NCCL alone %.0f us, outside NCCL %.0f %%",
      rank->size(), NameOf(compression), fused * 1e6, alone * 1e6, 100 * (fused - alone) / fused));
}

}  // namespace

void TestRanks(const Libraries& libraries) {
  const std::string sizes = RunRankCounts(libraries, [](Rank* rank) {
    rank->Open();
    CheckSums(rank, ResNet50(), InOne(Compression::kNone));  // first: it takes the most memory
    for (Compression compression : {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
      CheckSums(rank, {5, 0, 1000}, With(compression));
      CheckSums(rank, ResNet50(), With(compression));
    }
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      ShowTime(rank, compression);
    }
    rank->Close();
  });
  PrintFigures("exact sums on " + sizes + ", none, fp16 and bf16");
}

void TestAbort(const Libraries& libraries) {
  const std::string sizes = RunRankCounts(libraries, [](Rank* rank) {
    for (int round = 0; round < 2; ++round) {
      rank->Open();
      CheckSums(rank, {5, 0, 1000}, With(Compression::kFp16));
      CheckSums(rank, {1}, With(Compression::kNone));  // connects for what follows
      const DeviceMemory buffer(rank->gpu(), 4);
      rank->Meet();
      if (rank->rank() == 0) {  // the others never answer
        Require(rank->ranks()->AllReduce(buffer.data(), buffer.data(), 1, NcclType::kFloat32,
                                         NcclOperator::kSum, rank->gpu().stream(), rank->wait()));
      }
      rank->Meet();
      rank->Abort();
    }
    rank->Open();
    CheckSums(rank, ResNet50(), With(Compression::kFp16));
    rank->Close();
  });
  PrintFigures("2 aborts of a collective under way, and sums after each, on " + sizes);
}
