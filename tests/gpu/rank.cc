#include "rank.h"

#include <chrono>
#include <cstdio>

#include "expect.h"
#include "nccl/loaded_nccl.h"
#include "part.h"

using tfdist::CudaEvent;
using tfdist::DeviceCollective;
using tfdist::DeviceReduce;
using tfdist::KernelCache;
using tfdist::NcclApi;
using tfdist::NcclRanks;

namespace {

// The first NCCL that lets ranks share a GPU where NCCL_MULTI_RANK_GPU_ENABLE asks for it.
constexpr int kFirstNcclWithSharedGpu = 23000;

std::unique_ptr<NcclApi> OpenNccl(const Libraries& libraries) {
  std::unique_ptr<NcclApi> nccl;
  const tfdist::Status status = LoadNccl(libraries.nccl, &nccl);
  if (!status.ok()) EndWithoutRun(status.message());
  std::printf("%s\n", nccl->Describe().c_str());
  return nccl;
}

}  // namespace

Rank::Rank(const RankContext& self, const Libraries& libraries, NcclApi* nccl)
    : self_(self),
      gpu_(libraries),
      nccl_(nccl),
      config_(TestConfig()),
      wait_(config_, self.communicator->topology(), [] { return std::string("allreduce 'g'"); }) {}

void Rank::Meet() const { EXPECT_EQ(self_.engine->Barrier("meet").message(), ""); }

void Rank::Open() {
  Require(NcclRanks::Open(nccl_, "GPU 0: " + gpu_.facts().name, config_, self_.communicator, &wait_,
                          &ranks_));
  KernelCache kernels(gpu_.compiler(), "");
  Require(DeviceCollective::Open(gpu_.driver(), gpu_.facts(), &kernels,
                                 self_.communicator->topology(), &collective_));
  collective_->Connect(self_.communicator, ranks_.get(), nullptr);
  Meet();
}

void Rank::Reduce(const DeviceReduce& reduce, const DeviceTensors& tensors) {
  CudaEvent done, mark;
  Require(collective_->PrepareAllreduce(reduce, tensors.views()));
  Require(collective_->Mark(gpu_.stream(), &mark));
  Require(collective_->Allreduce(reduce, tensors.views(), tensors.views(),
                                 {{gpu_.stream(), mark}, &wait_, &done}));
  collective_->Release(mark);
  gpu_.WaitFor(done);
  collective_->Release(done);
}

void Rank::Close() {
  gpu_.Synchronize(gpu_.stream());
  Meet();
  collective_.reset();
  Require(ranks_->Close(&wait_));
  ranks_.reset();
  Meet();
}

void Rank::Abort() {
  ranks_.reset();
  gpu_.Synchronize(gpu_.stream());
  Meet();
  collective_.reset();
  Meet();
}

std::string RunRankCounts(const Libraries& libraries, const std::function<void(Rank*)>& body) {
  const std::unique_ptr<NcclApi> nccl = OpenNccl(libraries);
  for (int size : {1, 2}) {
    if (size > 1 && nccl->version() < kFirstNcclWithSharedGpu) {
      std::printf("2 ranks on one GPU need NCCL 2.30 or newer: left out\n");
      return "1 rank (2 need NCCL 2.30 or newer)";
    }
    RunRanksOn(FabricsOf(size)[0], TestConfig(), [&](const RankContext& self) {
      Rank rank(self, libraries, nccl.get());
      body(&rank);
      rank.Meet();  // each frees its memory when all have ended
    });
  }
  return "1 and 2 ranks";
}

double MeanSeconds(const std::function<void()>& work) {
  constexpr int kTimes = 20;
  work();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kTimes;
}
