// NCCL as it behaves for ranks that are threads of one process, on host memory, and with the faults
// that a test wants. A collective has run once all its ranks have called it; on a fake GPU, once
// all of them have come to it in their streams.
#ifndef TESTS_CPP_FAKE_NCCL_H_
#define TESTS_CPP_FAKE_NCCL_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_cuda_driver.h"
#include "nccl/nccl_api.h"

// What goes wrong on one rank.
struct NcclFaults {
  tfdist::NcclResult id = tfdist::NcclResult::kSuccess;    // of GetUniqueId
  tfdist::NcclResult init = tfdist::NcclResult::kSuccess;  // of Init, at once
  bool hangs = false;                                      // Init never ends
};

class FakeNccl;

// All ranks of a job. Outlives the FakeNccl that it makes.
class FakeNcclWorld {
 public:
  struct Call;
  struct Member;
  struct Group;

  FakeNcclWorld();
  ~FakeNcclWorld();

  std::unique_ptr<FakeNccl> Rank(const NcclFaults& faults = {});

  // Communicators that were neither aborted nor destroyed.
  int open() const;
  int aborted() const;

 private:
  friend class FakeNccl;

  static std::vector<char> Gathered(const std::vector<Call>& calls, size_t bytes);
  static void RunCollective(const std::vector<Call>& calls);
  static void Deliver(Member* receiver);
  void RunComplete(Group* group);

  mutable std::mutex mutex_;
  std::condition_variable ran_;
  std::map<int, std::shared_ptr<Group>> groups_;  // by the number in their unique id
  int ids_ = 0;
  int open_ = 0;
  int aborted_ = 0;
};

class FakeNccl : public tfdist::NcclApi {
 public:
  FakeNccl(FakeNcclWorld* world, const NcclFaults& faults);
  ~FakeNccl() override;

  // Calls are work in the streams of `gpu` from now on.
  void UseGpu(FakeCudaDriver* gpu) { gpu_ = gpu; }
  // What goes wrong from now on; before the next Init.
  void Break(const NcclFaults& faults) { faults_ = faults; }
  // What GetAsyncError says from now on of all communicators of this rank.
  void InjectAsyncError(tfdist::NcclResult result);
  // Waits until the calls of this rank have run; false after ten seconds.
  bool Synchronize();

  int version() const override { return 22800; }
  std::string Describe() const override { return "NCCL 2.28.0 (fake)"; }
  std::string ErrorText(tfdist::NcclResult result, tfdist::NcclHandle communicator) const override;
  tfdist::NcclResult GetUniqueId(tfdist::NcclUniqueId* id) override;
  tfdist::NcclResult Init(tfdist::NcclHandle* communicator, int size,
                          const tfdist::NcclUniqueId& id, int rank) override;
  tfdist::NcclResult GetAsyncError(tfdist::NcclHandle communicator,
                                   tfdist::NcclResult* state) override;
  tfdist::NcclResult Abort(tfdist::NcclHandle communicator) override;
  tfdist::NcclResult Finalize(tfdist::NcclHandle communicator) override;
  tfdist::NcclResult Destroy(tfdist::NcclHandle communicator) override;
  tfdist::NcclResult AllReduce(const void* source, void* target, size_t count,
                               tfdist::NcclType type, tfdist::NcclOperator op,
                               tfdist::NcclHandle communicator, tfdist::CudaStream stream) override;
  tfdist::NcclResult Broadcast(const void* source, void* target, size_t count,
                               tfdist::NcclType type, int root, tfdist::NcclHandle communicator,
                               tfdist::CudaStream stream) override;
  tfdist::NcclResult ReduceScatter(const void* source, void* target, size_t target_count,
                                   tfdist::NcclType type, tfdist::NcclOperator op,
                                   tfdist::NcclHandle communicator,
                                   tfdist::CudaStream stream) override;
  tfdist::NcclResult AllGather(const void* source, void* target, size_t source_count,
                               tfdist::NcclType type, tfdist::NcclHandle communicator,
                               tfdist::CudaStream stream) override;
  tfdist::NcclResult Send(const void* source, size_t count, tfdist::NcclType type, int peer,
                          tfdist::NcclHandle communicator, tfdist::CudaStream stream) override;
  tfdist::NcclResult Receive(void* target, size_t count, tfdist::NcclType type, int peer,
                             tfdist::NcclHandle communicator, tfdist::CudaStream stream) override;
  tfdist::NcclResult GroupStart() override;
  tfdist::NcclResult GroupEnd() override;

 private:
  tfdist::NcclResult Enqueue(tfdist::NcclHandle communicator, FakeNcclWorld::Call call,
                             tfdist::CudaStream stream);
  void Launch(FakeNcclWorld::Member* member, tfdist::CudaStream stream);
  void Post(FakeNcclWorld::Member* member, const FakeNcclWorld::Call& call);
  void Forget(tfdist::NcclHandle communicator);

  FakeNcclWorld* const world_;
  NcclFaults faults_;
  FakeCudaDriver* gpu_ = nullptr;
  tfdist::NcclResult async_error_ = tfdist::NcclResult::kSuccess;
  std::vector<FakeNcclWorld::Member*> members_;  // this rank's, still open
  std::vector<std::unique_ptr<FakeNcclWorld::Member>> hanging_;
  bool in_group_ = false;
  std::vector<FakeNcclWorld::Call> grouped_;  // of the group that has begun
  FakeNcclWorld::Member* group_member_ = nullptr;
  tfdist::CudaStream group_stream_ = nullptr;
};

#endif  // TESTS_CPP_FAKE_NCCL_H_
