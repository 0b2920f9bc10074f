// One rank of several that share GPU 0, each a thread of this process, joined by NCCL.
//
// No job does that: what allocates or frees memory of a GPU may wait for all that runs on it, so
// also for a kernel of another rank that waits for this one. Hence ranks meet before and after they
// do so, and the first collective is the largest, so that none has to replace its memory later.
#ifndef TESTS_GPU_RANK_H_
#define TESTS_GPU_RANK_H_

#include <functional>
#include <memory>
#include <string>

#include "gpu.h"
#include "nccl/device_collective.h"
#include "nccl/nccl_ranks.h"
#include "rank_team.h"

class Rank {
 public:
  Rank(const RankContext& self, const Libraries& libraries, tfdist::NcclApi* nccl);

  int rank() const { return self_.rank; }
  int size() const { return self_.size; }
  const RankContext& self() const { return self_; }
  const Gpu& gpu() const { return gpu_; }
  tfdist::NcclRanks* ranks() const { return ranks_.get(); }
  tfdist::Wait* wait() { return &wait_; }

  // Waits for all ranks, on the host.
  void Meet() const;

  void Open();
  void Close();

  // Allreduces the tensors in place, and waits for the results.
  void Reduce(const tfdist::DeviceReduce& reduce, const DeviceTensors& tensors);

  // In any order, since the others may never answer.
  void Abort();

 private:
  const RankContext& self_;
  const Gpu gpu_;
  tfdist::NcclApi* const nccl_;
  const tfdist::EngineConfig config_;
  tfdist::Wait wait_;
  std::unique_ptr<tfdist::NcclRanks> ranks_;
  std::unique_ptr<tfdist::DeviceCollective> collective_;
};

// Runs `body` on 1 and, where NCCL can, 2 ranks; returns "1 and 2 ranks". Ends the program without
// NCCL.
std::string RunRankCounts(const Libraries& libraries, const std::function<void(Rank*)>& body);

// Mean seconds of one `work` that waits for its end.
double MeanSeconds(const std::function<void()>& work);

#endif  // TESTS_GPU_RANK_H_
