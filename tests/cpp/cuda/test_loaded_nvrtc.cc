// What is said where there is no NVRTC, or a library that is none. NVRTC itself is tested in
// tests/gpu.
#include <memory>
#include <string>
#include <vector>

#include "cuda/loaded_nvrtc.h"
#include "expect.h"

using tfdist::KernelCompiler;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// Loads what is no NVRTC, and expects an error that contains `text`.
void ExpectError(const std::vector<std::string>& paths, StatusCode code, const std::string& text) {
  std::unique_ptr<KernelCompiler> compiler;
  const Status status = tfdist::LoadNvrtc(paths, &compiler);
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code));
  EXPECT_CONTAINS(status.message(), text);
  EXPECT(compiler == nullptr);
}

}  // namespace

TEST(LoadedNvrtcThatIsAbsentTellsWhatWasTried) {
  ExpectError({"/nowhere/libnvrtc.so"}, StatusCode::kUnimplemented,
              "NVRTC was not found. Install tensorflow[and-cuda] or nvidia-cuda-nvrtc-cu12, or set "
              "TFDIST_NVRTC_LIBRARY to a library. Tried:\n  /nowhere/libnvrtc.so: ");
}

TEST(LoadedNvrtcWithoutItsFunctionsIsRefused) {
  ExpectError({"/nowhere/libnvrtc.so", "libc.so.6"}, StatusCode::kFailedPrecondition,
              "the NVRTC found lacks required functions; install a newer");
}
