#include "gpu_team.h"

#include <memory>

#include "expect.h"

void RunOnGpus(int size, FakeCudaDriver::Policy policy,
               const std::function<void(const Rank& rank)>& body) {
  const tfdist::EngineConfig config = TestConfig();
  FakeNcclWorld world;
  RunRanksOn(FabricsOf(size)[0], config, [&](const RankContext& self) {
    FakeCudaDriver gpu(policy);
    const std::unique_ptr<FakeNccl> nccl = world.Rank();
    nccl->UseGpu(&gpu);
    tfdist::Wait wait(config, self.communicator->topology(),
                      [] { return std::string("allreduce 'g'"); });
    tfdist::CudaStream compute;
    EXPECT(gpu.NewStream(false, &compute).ok());
    std::unique_ptr<tfdist::NcclRanks> ranks;
    EXPECT(
        tfdist::NcclRanks::Open(nccl.get(), "GPU", config, self.communicator, &wait, &ranks).ok());
    FakeCompiler compiler;
    tfdist::KernelCache kernels(&compiler, "");
    tfdist::DeviceFacts facts;
    EXPECT(gpu.Describe(0, &facts).ok());
    {
      std::unique_ptr<tfdist::DeviceCollective> collective;
      EXPECT(tfdist::DeviceCollective::Open(&gpu, facts, &kernels, self.communicator->topology(),
                                            &collective)
                 .ok());
      collective->Connect(self.communicator, ranks.get(), nullptr);
      body({self, &gpu, collective.get(), compute, &wait});
      EXPECT(gpu.Synchronize());
    }
    EXPECT_EQ(gpu.allocated_bytes(), 0);
    for (const std::string& line : gpu.log()) {
      EXPECT(line.find("stream 1 waits") == std::string::npos);  // the computation's
    }
    EXPECT(ranks->Close(&wait).ok());
    EXPECT_EQ(self.engine->Barrier("end").message(), "");  // the fakes live until all have ended
  });
}
