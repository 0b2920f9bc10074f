// How the ranks of a host show each other their headers in their window, before a collective; and
// how the first of them, which leads, tells the others those of other hosts. Sends nothing and
// compares nothing.
//
// A rank that waits here also looks whether the transport knows of a loss, and the process of each
// of its host. Lives for one agreement, at the same point on each rank of the host. For one thread.
#ifndef TFDIST_CORE_AGREE_HOST_MEETING_H_
#define TFDIST_CORE_AGREE_HOST_MEETING_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/place/circle.h"
#include "core/place/window.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

class HostMeeting {
 public:
  // The first group of `circle` has the ranks of `window`. All outlive it.
  HostMeeting(const Circle& circle, Communicator* communicator, Window* window, Wait* wait)
      : circle_(circle),
        communicator_(communicator),
        window_(window),
        wait_(wait),
        number_(window->NextMeeting()) {}

  // Each header has Window::kHeaderBytes bytes.
  void Show(const void* header);

  // Waits for the headers of all ranks of the host, in the order of their local ranks.
  Status Gather(char* headers);

  // What the leader tells, after Gather: the headers of all ranks, in the order of the circle.
  void Tell(const char* headers);
  Status Hear(char* headers);

 private:
  // What is waited for.
  struct Awaited {
    bool of_leader;  // what it tells; else the headers of this host
    std::function<bool()> is_here;
  };

  Status Await(const Awaited& awaited);
  Status CheckShown() const;
  Status CheckPeers(const Awaited& awaited, int* lost) const;
  Status Lost(const std::vector<int>& ranks, const std::string& what) const;
  int FirstMissing(int local_rank) const;
  std::vector<int> Missing() const;

  const Circle& circle_;
  Communicator* const communicator_;
  Window* const window_;
  Wait* const wait_;
  const uint64_t number_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_HOST_MEETING_H_
