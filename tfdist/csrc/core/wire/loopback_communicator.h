// A transport between threads of one process: n ranks as n threads for tests, and size 1.
// Not fast: one lock serves all ranks, and bytes are copied under it.
//
// The communicators share one hub, which lives as long as any of them. Each communicator is for
// the thread that plays its rank; Kill may be called from any thread.
#ifndef TFDIST_CORE_WIRE_LOOPBACK_COMMUNICATOR_H_
#define TFDIST_CORE_WIRE_LOOPBACK_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "core/wire/communicator.h"

namespace tfdist {

class LoopbackHub;

class LoopbackCommunicator : public Communicator {
 public:
  // One communicator a rank, all on host "localhost"; or, of as many ranks as `host_ids` has
  // numbers, each on the host with its number.
  static std::vector<std::unique_ptr<LoopbackCommunicator>> Create(int size);
  static std::vector<std::unique_ptr<LoopbackCommunicator>> Create(
      const std::vector<int>& host_ids);

  LoopbackCommunicator(Topology topology, int channel, std::shared_ptr<LoopbackHub> hub);
  ~LoopbackCommunicator() override;

  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  Wait* wait) override;
  Status CheckPeers(const std::vector<int>& ranks, int* lost) override;
  Status GiveUp(const Status& status, int lost, const Wait& wait) override;
  void SendNote(int peer, int64_t note) override;
  bool TakeNote(int* peer, int64_t* note) override;
  Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                std::unique_ptr<Communicator>* subset) override;
  Status OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) override;
  Status Finalize(bool clean) override;

  // Plays the death of this rank: its own and its peers' waits end with kUnavailable.
  void Kill();

 private:
  const int channel_;
  const std::shared_ptr<LoopbackHub> hub_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_LOOPBACK_COMMUNICATOR_H_
