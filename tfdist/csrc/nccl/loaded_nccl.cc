#include "nccl/loaded_nccl.h"

#include <climits>
#include <cstdio>
#include <utility>

#include "cuda/shared_library.h"

namespace tfdist {
namespace {

constexpr const char* kSoname = "libnccl.so.2";

// NCCL reads as many members as `size` tells, and takes INT_MIN and null for "not set".
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldestNccl;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};

std::string VersionText(int version) {
  char text[32];
  std::snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100,
                version % 100);
  return text;
}

// The C functions, by name.
struct NcclFunctions {
  NcclResult (*ncclGetVersion)(int*);
  const char* (*ncclGetErrorString)(NcclResult);
  const char* (*ncclGetLastError)(NcclHandle);
  NcclResult (*ncclGetUniqueId)(NcclUniqueId*);
  NcclResult (*ncclCommInitRankConfig)(NcclHandle*, int, NcclUniqueId, int, Config*);
  NcclResult (*ncclCommGetAsyncError)(NcclHandle, NcclResult*);
  NcclResult (*ncclCommAbort)(NcclHandle);
  NcclResult (*ncclCommFinalize)(NcclHandle);
  NcclResult (*ncclCommDestroy)(NcclHandle);
  NcclResult (*ncclAllReduce)(const void*, void*, size_t, NcclType, NcclOperator, NcclHandle,
                              CudaStream);
  NcclResult (*ncclBroadcast)(const void*, void*, size_t, NcclType, int, NcclHandle, CudaStream);
  NcclResult (*ncclReduceScatter)(const void*, void*, size_t, NcclType, NcclOperator, NcclHandle,
                                  CudaStream);
  NcclResult (*ncclAllGather)(const void*, void*, size_t, NcclType, NcclHandle, CudaStream);
  NcclResult (*ncclSend)(const void*, size_t, NcclType, int, NcclHandle, CudaStream);
  NcclResult (*ncclRecv)(void*, size_t, NcclType, int, NcclHandle, CudaStream);
  NcclResult (*ncclGroupStart)();
  NcclResult (*ncclGroupEnd)();
};

void FindAll(SharedLibrary* library, NcclFunctions* functions) {
#define TFDIST_FIND(name) library->Find(#name, &functions->name)
  TFDIST_FIND(ncclGetVersion);
  TFDIST_FIND(ncclGetErrorString);
  TFDIST_FIND(ncclGetLastError);
  TFDIST_FIND(ncclGetUniqueId);
  TFDIST_FIND(ncclCommInitRankConfig);
  TFDIST_FIND(ncclCommGetAsyncError);
  TFDIST_FIND(ncclCommAbort);
  TFDIST_FIND(ncclCommFinalize);
  TFDIST_FIND(ncclCommDestroy);
  TFDIST_FIND(ncclAllReduce);
  TFDIST_FIND(ncclBroadcast);
  TFDIST_FIND(ncclReduceScatter);
  TFDIST_FIND(ncclAllGather);
  TFDIST_FIND(ncclSend);
  TFDIST_FIND(ncclRecv);
  TFDIST_FIND(ncclGroupStart);
  TFDIST_FIND(ncclGroupEnd);
#undef TFDIST_FIND
}

class LoadedNccl : public NcclApi {
 public:
  LoadedNccl(const NcclFunctions& functions, int version, std::string path)
      : call_(functions), version_(version), path_(std::move(path)) {}

  int version() const override { return version_; }

  std::string Describe() const override {
    return "NCCL " + VersionText(version_) + " (" + path_ + ")";
  }

  std::string ErrorText(NcclResult result, NcclHandle communicator) const override {
    std::string text = call_.ncclGetErrorString(result);
    const char* const last = call_.ncclGetLastError(communicator);
    if (last != nullptr && *last != '\0') text += ": " + std::string(last);
    return text;
  }

  NcclResult GetUniqueId(NcclUniqueId* id) override { return call_.ncclGetUniqueId(id); }
  NcclResult Init(NcclHandle* communicator, int size, const NcclUniqueId& id, int rank) override {
    Config config;
    return call_.ncclCommInitRankConfig(communicator, size, id, rank, &config);
  }
  NcclResult GetAsyncError(NcclHandle communicator, NcclResult* state) override {
    return call_.ncclCommGetAsyncError(communicator, state);
  }
  NcclResult Abort(NcclHandle communicator) override { return call_.ncclCommAbort(communicator); }
  NcclResult Finalize(NcclHandle communicator) override {
    return call_.ncclCommFinalize(communicator);
  }
  NcclResult Destroy(NcclHandle communicator) override {
    return call_.ncclCommDestroy(communicator);
  }

  NcclResult AllReduce(const void* source, void* target, size_t count, NcclType type,
                       NcclOperator op, NcclHandle communicator, CudaStream stream) override {
    return call_.ncclAllReduce(source, target, count, type, op, communicator, stream);
  }
  NcclResult Broadcast(const void* source, void* target, size_t count, NcclType type, int root,
                       NcclHandle communicator, CudaStream stream) override {
    return call_.ncclBroadcast(source, target, count, type, root, communicator, stream);
  }
  NcclResult ReduceScatter(const void* source, void* target, size_t target_count, NcclType type,
                           NcclOperator op, NcclHandle communicator, CudaStream stream) override {
    return call_.ncclReduceScatter(source, target, target_count, type, op, communicator, stream);
  }
  NcclResult AllGather(const void* source, void* target, size_t source_count, NcclType type,
                       NcclHandle communicator, CudaStream stream) override {
    return call_.ncclAllGather(source, target, source_count, type, communicator, stream);
  }
  NcclResult Send(const void* source, size_t count, NcclType type, int peer,
                  NcclHandle communicator, CudaStream stream) override {
    return call_.ncclSend(source, count, type, peer, communicator, stream);
  }
  NcclResult Receive(void* target, size_t count, NcclType type, int peer, NcclHandle communicator,
                     CudaStream stream) override {
    return call_.ncclRecv(target, count, type, peer, communicator, stream);
  }
  NcclResult GroupStart() override { return call_.ncclGroupStart(); }
  NcclResult GroupEnd() override { return call_.ncclGroupEnd(); }

 private:
  const NcclFunctions call_;
  const int version_;
  const std::string path_;
};

}  // namespace

Status LoadNccl(const std::vector<std::string>& paths, std::unique_ptr<NcclApi>* nccl) {
  SharedLibrary library({kSoname}, paths);
  if (!library.IsOpen()) {
    return Status(StatusCode::kUnimplemented,
                  "NCCL was not found. Install tensorflow[and-cuda] or nvidia-nccl-cu12, or set "
                  "TFDIST_NCCL_LIBRARY to a library. Tried:" +
                      library.tried());
  }
  NcclFunctions functions;
  FindAll(&library, &functions);
  const std::string& missing = library.missing();
  int version = 0;
  const bool old = functions.ncclGetVersion == nullptr ||
                   functions.ncclGetVersion(&version) != NcclResult::kSuccess ||
                   version < kOldestNccl;
  const std::string file = SharedLibrary::FileOf(functions.ncclGetVersion);
  const std::string path = file.empty() ? kSoname : file;
  if (old || !missing.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "NCCL " + VersionText(version) + " (" + path + ") is too old; expected " +
                      VersionText(kOldestNccl) + " or newer" +
                      (missing.empty() ? "" : ", with " + missing) +
                      ". Install a newer nvidia-nccl-cu12, or set another library with "
                      "TFDIST_NCCL_LIBRARY.");
  }
  *nccl = std::make_unique<LoadedNccl>(functions, version, path);
  return Status::Ok();
}

}  // namespace tfdist
