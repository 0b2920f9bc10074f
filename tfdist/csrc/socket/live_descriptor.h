// A file descriptor that is closed with its owner, and in every process that this one forks.
// shm/descriptor.h has those that a forked process may keep.
//
// A connection ends for its peer when the last copy is closed, so one in a forked process would
// hide the end of this rank. Each object is for one thread at a time.
#ifndef TFDIST_SOCKET_LIVE_DESCRIPTOR_H_
#define TFDIST_SOCKET_LIVE_DESCRIPTOR_H_

#include <utility>

namespace tfdist {

class LiveDescriptor {
 public:
  // Takes over `number`; a negative one is none.
  explicit LiveDescriptor(int number = -1);
  ~LiveDescriptor();
  LiveDescriptor(LiveDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  LiveDescriptor& operator=(LiveDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  // In a forked process, a number of nothing.
  int get() const { return number_; }

 private:
  int number_;
};

}  // namespace tfdist

#endif  // TFDIST_SOCKET_LIVE_DESCRIPTOR_H_
