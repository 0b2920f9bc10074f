// The functions of NCCL that tfdist uses, as an interface: loaded_nccl.h is the real one, tests
// have a fake. The types are declared here as NCCL's stable ABI has them, so that building needs
// neither its header nor CUDA.
//
// Each call returns NCCL's own result and checks nothing. A communicator is for one thread at a
// time.
#ifndef TFDIST_NCCL_NCCL_API_H_
#define TFDIST_NCCL_NCCL_API_H_

#include <cstddef>
#include <string>

#include "cuda/cuda_driver.h"

namespace tfdist {

using NcclHandle = struct ncclComm*;  // a communicator

struct NcclUniqueId {
  char bytes[128];
};

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum class NcclOperator : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // As 22800 for 2.28.0.
  virtual int version() const = 0;
  // "NCCL 2.28.0 (/path/libnccl.so.2)", for messages.
  virtual std::string Describe() const = 0;
  // What NCCL says of `result`, with the last error of `communicator`, which may be null.
  virtual std::string ErrorText(NcclResult result, NcclHandle communicator) const = 0;

  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Communicators do not block: kInProgress until GetAsyncError says otherwise.
  virtual NcclResult Init(NcclHandle* communicator, int size, const NcclUniqueId& id, int rank) = 0;
  virtual NcclResult GetAsyncError(NcclHandle communicator, NcclResult* state) = 0;
  // Waits for nothing, unlike Finalize followed by Destroy, which all ranks must call.
  virtual NcclResult Abort(NcclHandle communicator) = 0;
  virtual NcclResult Finalize(NcclHandle communicator) = 0;
  virtual NcclResult Destroy(NcclHandle communicator) = 0;

  // Counts are elements; addresses are of device memory.
  virtual NcclResult AllReduce(const void* source, void* target, size_t count, NcclType type,
                               NcclOperator op, NcclHandle communicator, CudaStream stream) = 0;
  virtual NcclResult Broadcast(const void* source, void* target, size_t count, NcclType type,
                               int root, NcclHandle communicator, CudaStream stream) = 0;
  virtual NcclResult ReduceScatter(const void* source, void* target, size_t target_count,
                                   NcclType type, NcclOperator op, NcclHandle communicator,
                                   CudaStream stream) = 0;
  virtual NcclResult AllGather(const void* source, void* target, size_t source_count, NcclType type,
                               NcclHandle communicator, CudaStream stream) = 0;
  virtual NcclResult Send(const void* source, size_t count, NcclType type, int peer,
                          NcclHandle communicator, CudaStream stream) = 0;
  virtual NcclResult Receive(void* target, size_t count, NcclType type, int peer,
                             NcclHandle communicator, CudaStream stream) = 0;
  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_NCCL_API_H_
