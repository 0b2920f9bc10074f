// Ranges as the product tells NVTX of them, which listener.cc hears where it is attached.
//
//     ranges LIBRARY_OF_NVTX
#include <cstdio>
#include <memory>

#include "cuda/loaded_nvtx.h"

int main(int count, char** words) {
  const std::unique_ptr<tfdist::Profiler> profiler = tfdist::LoadNvtx({words[count - 1]});
  if (profiler == nullptr) {
    std::printf("nobody listens\n");
    return 0;
  }
  const uint64_t first = profiler->Start("allreduce 'a'");
  {
    const tfdist::ProfilerScope bucket(profiler.get(), [] { return std::string("bucket 0"); });
    const tfdist::ProfilerScope inner(profiler.get(), [] { return std::string("inner"); });
  }
  const uint64_t second = profiler->Start("allreduce 'b'");
  profiler->End(first);
  profiler->End(second);
  return 0;
}
