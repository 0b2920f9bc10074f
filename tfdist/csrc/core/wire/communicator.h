// The interface to a transport: who the ranks are, and one way to move bytes between them.
// Not a collective: those are built on Exchange in collective.h.
//
// Whoever creates a communicator owns it, in the end an Engine. Its const part may be read by any
// thread; Exchange and Finalize are for one thread at a time. After an error of Exchange the state
// of the transport is unknown, and only Finalize(false) and the destructor may follow.
#ifndef TFDIST_CORE_WIRE_COMMUNICATOR_H_
#define TFDIST_CORE_WIRE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/place/topology.h"
#include "core/place/window.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/wire/wait.h"

namespace tfdist {

// One message to or from another rank. Sends do not write to `data`.
struct Transfer {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;  // equal on both sides; a transfer of 0 bytes is not sent at all
};

class TFDIST_API Communicator {
 public:
  explicit Communicator(Topology topology) : topology_(std::move(topology)) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Topology& topology() const { return topology_; }
  int rank() const { return topology_.rank; }
  int size() const { return topology_.size; }

  // Starts all sends and receives and returns when all are complete, when `wait` expires or when
  // the transport fails (kUnavailable). Messages between two ranks keep their order.
  virtual Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                          Wait* wait) = 0;

  // For a wait that is none of this transport: why an Exchange that waits for `ranks` would fail
  // now, as far as the transport knows. `lost` is then the rank because of which, by its number
  // among all, or as it was. Ends nothing.
  virtual Status CheckPeers(const std::vector<int>& ranks, int* lost) {
    static_cast<void>(ranks);
    static_cast<void>(lost);
    return Status::Ok();
  }

  // Ends the transport after such a wait as after an Exchange that has failed with `status`, which
  // is returned in the words of the transport. Where it can tell the others, their waits fail too.
  virtual Status GiveUp(const Status& status, int lost, const Wait& wait) {
    static_cast<void>(lost);
    if (status.code() != StatusCode::kUnavailable) return status;
    return Status(status.code(),
                  status.message() + " It was in " + wait.Describe() +
                      ". See the logs of the ranks named here for the first failure.");
  }

  // A number of 0 or more and less than 2^56 for another rank, beside the messages of Exchange, on
  // its way at once. Nobody waits for it, and it may get lost where the transport ends. Within an
  // Exchange too, from what its Wait calls.
  virtual void SendNote(int peer, int64_t note) = 0;

  // The next note that has come: from one rank in the order of their sending. False: none has.
  virtual bool TakeNote(int* peer, int64_t* note) = 0;

  // Whether a message of `peer` is here that no Exchange has asked for yet, which holds up the
  // notes behind it. False where nothing is held up.
  virtual bool HoldsMessageOf(int peer) {
    static_cast<void>(peer);
    return false;
  }

  // Why Subset with `channel` would fail on this rank, as far as this rank knows by itself. Sends
  // nothing, so the ranks can agree on the answers before they call Subset.
  virtual Status CheckSubset(int channel) {
    static_cast<void>(channel);
    return Status::Ok();
  }

  // A transport among `ranks`, ascending and with this one among them, beside this transport and
  // apart from it: their messages never mix. All of `ranks` call it at the same time, while none of
  // them is in another Exchange of this transport, with the same `channel`, a positive number that
  // no other subset with one of them has had. May exchange messages among `ranks` over this
  // transport; where one of them then could not make the subset, all get the same error that names
  // it, and this transport is as before. It must not outlive this one.
  virtual Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                        std::unique_ptr<Communicator>* subset) = 0;

  // A window for the ranks of this host, in which this one has its local rank, with `bytes` of
  // memory each; null where the transport has none. All ranks call it. kInternal is a failure of
  // this rank alone, which then has no window; anything else one of the transport.
  virtual Status OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) {
    static_cast<void>(bytes);
    static_cast<void>(wait);
    window->reset();
    return Status::Ok();
  }

  // Ends the transport. With `clean` every rank must call it, having agreed on that; without, it
  // waits for nobody, and where the transport can tell the others their waits for this rank fail.
  // A subset needs none.
  virtual Status Finalize(bool clean) = 0;

 private:
  const Topology topology_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_COMMUNICATOR_H_
