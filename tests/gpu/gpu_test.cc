// The GPU path on a real GPU, without TensorFlow. `run` builds and starts it, a part a process.
//
//     gpu_test NVRTC[:NVRTC...] NCCL[:NCCL...] device | PART
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/loaded_cuda_driver.h"
#include "expect.h"
#include "part.h"

using tfdist::Status;

void EndWithoutRun(const std::string& reason) {
  std::printf("not run: %s\n", reason.c_str());
  std::fflush(stdout);
  std::exit(kNotRun);
}

void PrintFigures(const std::string& text) { std::printf("figures: %s\n", text.c_str()); }

std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

namespace {

const std::map<std::string, void (*)(const Libraries&)> kParts = {
    {"compile", TestCompile},     {"kernels", TestKernels}, {"large", TestLarge},
    {"bandwidth", TestBandwidth}, {"ranks", TestRanks},     {"abort", TestAbort},
    {"adasum", TestAdasum},
};

std::vector<std::string> Split(const std::string& paths) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= paths.size();) {
    const size_t end = std::min(paths.find(':', begin), paths.size());
    if (end > begin) parts.push_back(paths.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Says which GPU there is, or ends the program with what is missing.
void ShowDevice() {
  std::unique_ptr<tfdist::CudaDriver> driver;
  const Status status = tfdist::LoadCudaDriver(&driver);
  if (!status.ok()) EndWithoutRun(status.message());
  int count = 0;
  Require(driver->CountDevices(&count));
  if (count == 0) EndWithoutRun("the NVIDIA driver sees no GPU; CUDA_VISIBLE_DEVICES may hide it");
  tfdist::DeviceFacts facts;
  Require(driver->Use(0));
  Require(driver->Describe(0, &facts));
  std::printf("%s, %s, %d multiprocessors, %.0f GB, driver for CUDA %d.%d\n", facts.name.c_str(),
              facts.architecture.c_str(), facts.multiprocessors,
              static_cast<double>(facts.memory_bytes) / 1e9, driver->version() / 1000,
              driver->version() % 1000 / 10);
}

}  // namespace

int main(int count, char** words) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a part that is killed leaves what it saw
  const std::string what = count == 4 ? words[3] : "";
  if (what == "device") {
    ShowDevice();
    return 0;
  }
  const auto part = kParts.find(what);
  if (part == kParts.end()) {
    std::fprintf(stderr, "usage: gpu_test NVRTC[:NVRTC...] NCCL[:NCCL...] device");
    for (const auto& [name, function] : kParts) std::fprintf(stderr, "|%s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  // For ranks that share the GPU: NCCL is to let them, and kernels that were loaded when they are
  // first used would wait for those that run.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  part->second({Split(words[1]), Split(words[2])});
  std::printf("%s: %d failed expectations\n", what.c_str(), expect::Failures().load());
  return expect::Failures() == 0 ? 0 : 1;
}
