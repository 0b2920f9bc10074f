// The report on GPUs: what was found, and in place of each part that is missing its error.
#include <memory>
#include <string>
#include <vector>

#include "core/engine/device_report.h"
#include "expect.h"
#include "fake_cuda_driver.h"
#include "fake_nccl.h"
#include "nccl/gpu_report.h"

using tfdist::CudaDriver;
using tfdist::DeviceFacts;
using tfdist::GpuParts;
using tfdist::KernelCompiler;
using tfdist::NcclApi;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

Status Lack(const std::string& text) { return Status(StatusCode::kUnimplemented, text); }

class FakeCompiler : public KernelCompiler {
 public:
  explicit FakeCompiler(std::vector<std::string>* compiled) : compiled_(compiled) {}

  std::string Describe() const override { return "NVRTC 12.9 (fake)"; }
  int version() const override { return 12009; }
  Status Compile(const std::string&, const std::string& architecture, std::string* image) override {
    compiled_->push_back(architecture);
    if (architecture == "sm_999") return Status(StatusCode::kInternal, "no such GPU");
    *image = architecture;
    return Status::Ok();
  }

 private:
  std::vector<std::string>* const compiled_;
};

// Four GPUs of three kinds; the second cannot be described.
class FourGpus : public FakeCudaDriver {
 public:
  Status CountDevices(int* count) override {
    *count = 4;
    return Status::Ok();
  }
  Status Describe(int device, DeviceFacts* facts) override {
    if (device == 1) return Status(StatusCode::kInternal, "the GPU fell off\n\"the bus\"");
    const char* const names[] = {"A", "", "B", "A"};
    const char* const architectures[] = {"sm_80", "", "sm_999", "sm_80"};
    *facts = {names[device], architectures[device], 108 + device, int64_t{80} << 30};
    return Status::Ok();
  }
};

// All there; `compiled` gets the architectures that the compiler was asked for.
GpuParts Parts(FakeNcclWorld* world, std::vector<std::string>* compiled) {
  GpuParts parts;
  parts.driver = [](std::unique_ptr<CudaDriver>* driver) {
    *driver = std::make_unique<FourGpus>();
    return Status::Ok();
  };
  parts.compiler = [compiled](std::unique_ptr<KernelCompiler>* compiler) {
    *compiler = std::make_unique<FakeCompiler>(compiled);
    return Status::Ok();
  };
  parts.nccl = [world](std::unique_ptr<NcclApi>* nccl) {
    *nccl = world->Rank();
    return Status::Ok();
  };
  return parts;
}

}  // namespace

TEST(GpuReportHasEveryPart) {
  FakeNcclWorld world;
  std::vector<std::string> compiled;
  EXPECT_EQ(
      GpuReport(Parts(&world, &compiled)),
      std::string("{\"driver\": {\"version\": 12090}, \"gpus\": ["
                  "{\"name\": \"A\", \"architecture\": \"sm_80\", \"memory_bytes\": 85899345920, "
                  "\"multiprocessors\": 108}, "
                  "{\"error\": \"the GPU fell off\\u000a\\\"the bus\\\"\"}, "
                  "{\"name\": \"B\", \"architecture\": \"sm_999\", \"memory_bytes\": 85899345920, "
                  "\"multiprocessors\": 110}, "
                  "{\"name\": \"A\", \"architecture\": \"sm_80\", \"memory_bytes\": 85899345920, "
                  "\"multiprocessors\": 111}], "
                  "\"nccl\": {\"version\": 22800, \"text\": \"NCCL 2.28.0 (fake)\"}, "
                  "\"compiler\": {\"version\": 12009, \"text\": \"NVRTC 12.9 (fake)\"}, "
                  "\"kernels\": [{\"architecture\": \"sm_80\"}, "
                  "{\"architecture\": \"sm_999\", \"error\": \"no such GPU\"}]}"));
  EXPECT_EQ(compiled.size(), size_t{2});  // once a kind
}

TEST(GpuReportSaysWhatIsMissing) {
  FakeNcclWorld world;
  std::vector<std::string> compiled;
  GpuParts parts = Parts(&world, &compiled);
  parts.compiler = [](std::unique_ptr<KernelCompiler>*) { return Lack("no compiler"); };
  parts.nccl = [](std::unique_ptr<NcclApi>*) { return Lack("no NCCL: C:\\"); };
  std::string report = GpuReport(parts);
  EXPECT_CONTAINS(report, "\"driver\": {\"version\": 12090}");
  EXPECT_CONTAINS(report, "\"nccl\": {\"error\": \"no NCCL: C:\\\\\"}");
  EXPECT_CONTAINS(report, "\"compiler\": {\"error\": \"no compiler\"}, \"kernels\": []}");
  parts.driver = [](std::unique_ptr<CudaDriver>*) { return Lack("no driver"); };
  report = GpuReport(parts);
  EXPECT_CONTAINS(report, "{\"driver\": {\"error\": \"no driver\"}, \"gpus\": [], \"nccl\"");
}

TEST(GpuReportIsRegistered) {
  tfdist::EngineConfig config;
  config.nccl_libraries = {"/nowhere/libnccl.so.2"};
  const std::string report = tfdist::DescribeDevices(config);
  for (const char* part : {"{\"driver\": {", "\"gpus\": [", "\"nccl\": {", "\"compiler\": {"}) {
    EXPECT_CONTAINS(report, part);
  }
}
