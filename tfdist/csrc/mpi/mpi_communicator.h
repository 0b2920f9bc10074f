// A transport over MPI, in a communicator of its own (a duplicate of MPI_COMM_WORLD).
// Uses point-to-point messages only, all non-blocking, so that every wait can end.
//
// Starts MPI where nobody has, and only then ends it. Works beside mpi4py, whose messages it never
// sees. MPI itself must allow calls from several threads, one at a time (MPI_THREAD_SERIALIZED).
// After an error the buffers of that exchange should stay alive: MPI gives no way to take back a
// message that is half on its way.
#ifndef TFDIST_MPI_MPI_COMMUNICATOR_H_
#define TFDIST_MPI_MPI_COMMUNICATOR_H_

#include <mpi.h>

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/communicator_factory.h"

namespace tfdist {

class MpiCommunicator : public Communicator {
 public:
  // All ranks of `membership` call it. Waits for them within config.stall_shutdown_seconds.
  static Status Create(const EngineConfig& config, const Membership& membership,
                       std::unique_ptr<Communicator>* communicator);

  // Takes over `mpi`, but for a subset (channel > 0), which has it from another communicator.
  // `owns_mpi`: this process' MPI was started for us.
  MpiCommunicator(Topology topology, MPI_Comm mpi, int channel, bool owns_mpi);
  ~MpiCommunicator() override;

  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  Wait* wait) override;
  void SendNote(int peer, int64_t note) override;
  bool TakeNote(int* peer, int64_t* note) override;
  Status CheckSubset(int channel) override;
  Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                std::unique_ptr<Communicator>* subset) override;
  Status OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) override;
  Status Finalize(bool clean) override;

 private:
  // The pieces of one exchange that are under way.
  struct Pieces {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;  // by request
    size_t open = 0;
    size_t first_receive = 0;  // requests from here on receive
    int latest = -1;           // the peer of the one that was complete last
  };

  // Of a note; in its own place, since MPI reads it later.
  struct SentNote {
    int64_t note = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  int DataTag() const;
  int NoteTag() const { return DataTag() + 1; }
  Status Start(const Transfer& transfer, bool send, Pieces* pieces);
  Status Poll(Pieces* pieces, bool* progress);
  Status Complete(Pieces* pieces, Wait* wait);
  void Abandon(Pieces* pieces);
  Status Lost(int error, int peer) const;

  MPI_Comm mpi_;
  const int channel_;
  const bool owns_mpi_;
  std::list<SentNote> sent_notes_;    // that MPI may still read
  std::vector<int> indices_;          // of completed requests, kept to spare allocations
  std::vector<MPI_Status> statuses_;  // beside indices_
};

}  // namespace tfdist

#endif  // TFDIST_MPI_MPI_COMMUNICATOR_H_
