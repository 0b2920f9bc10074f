// What is said where there is no NCCL, or a library that is none. NCCL itself is tested on a GPU.
#include <memory>
#include <string>

#include "expect.h"
#include "nccl/loaded_nccl.h"

using tfdist::NcclApi;
using tfdist::Status;
using tfdist::StatusCode;

TEST(LoadedNcclThatIsAbsentTellsWhatWasTried) {
  std::unique_ptr<NcclApi> nccl;
  const Status status = tfdist::LoadNccl({"/nowhere/libnccl.so"}, &nccl);
  EXPECT(status.code() == StatusCode::kUnimplemented);
  EXPECT_CONTAINS(status.message(), "NCCL was not found. Install tensorflow[and-cuda]");
  EXPECT_CONTAINS(status.message(),
                  "TFDIST_NCCL_LIBRARY to a library. Tried:\n  /nowhere/libnccl.so: ");
  EXPECT(nccl == nullptr);
}

TEST(LoadedNcclThatIsTooOldNamesAllThatItLacks) {
  std::unique_ptr<NcclApi> nccl;
  const Status status = tfdist::LoadNccl({"/nowhere/libnccl.so", "libc.so.6"}, &nccl);
  EXPECT(status.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(status.message(),
                  "NCCL 0.0.0 (libnccl.so.2) is too old; expected 2.17.0 or newer, with "
                  "ncclGetVersion, ncclGetErrorString, ");
  EXPECT_CONTAINS(status.message(), ", ncclGroupEnd. Install a newer nvidia-nccl-cu12, or set");
  EXPECT(nccl == nullptr);
}
