// One TCP connection as two streams of messages: sends and receives what it is given, as far as the
// socket takes and has it. Never waits, and knows no rank.
//
// The memory of a transfer belongs to the caller and stays until it is complete or nothing is moved
// any more. Whatever bytes come, the worst is an End. For one thread at a time.
#ifndef TFDIST_SOCKET_CONNECTION_H_
#define TFDIST_SOCKET_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "socket/frame.h"
#include "socket/live_descriptor.h"

namespace tfdist {

class Connection {
 public:
  // Why nothing more comes.
  enum class End { kNone, kClosed, kAborted, kMalformed };

  // `socket` does not block.
  explicit Connection(LiveDescriptor socket) : socket_(std::move(socket)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int descriptor() const { return socket_.get(); }

  // Queues a transfer of 1 byte or more.
  void Send(const void* data, int64_t bytes) {
    outgoing_.Add({FrameKind::kData, const_cast<void*>(data), bytes});
  }
  void Receive(void* data, int64_t bytes) { incoming_.Add({FrameKind::kData, data, bytes}); }

  // Queues a number below 2^56 as a message of its own, behind the transfers.
  void SendNote(int64_t note) { outgoing_.Add({FrameKind::kNote, nullptr, note}); }

  // The next one that has come. Of those that nobody takes, a few are kept.
  bool TakeNote(int64_t* note);

  // Whether a message has begun to come that no transfer wants yet.
  bool holds_message() const {
    return end_ == End::kNone && incoming_.empty() && in_.done == kFrameHeadBytes;
  }

  // Whether a transfer is not complete.
  bool busy() const { return !outgoing_.empty() || !incoming_.empty(); }

  // The system says that there is something to read, or room to write.
  void Wake(bool readable, bool writable) {
    readable_ = readable_ || readable;
    writable_ = writable_ || writable;
  }

  // Moves what can be moved by one call to the system each way. Where no transfer wants data, looks
  // at the head of the next message, which may be the peer's end. True where a byte has moved.
  bool Move();

  // The end of a connection is no error where nothing is left to move; kAborted and kMalformed are.
  End end() const { return end_; }
  const std::string& reason() const { return reason_; }      // of kClosed: why
  int lost() const { return lost_; }                         // of kAborted: the rank, -1: none
  const std::string& received() const { return received_; }  // of kMalformed, in words
  const std::string& expected() const { return expected_; }

  // Tells the peer, as far as that needs no wait, that this rank has failed after the loss of
  // `lost`, or of none (-1), and that nothing more comes. Nothing is moved afterwards.
  void Abort(int lost);

 private:
  struct Piece {
    FrameKind kind;
    void* data;
    int64_t number;  // of bytes; or the note, which has none
    int64_t bytes() const { return kind == FrameKind::kData ? number : 0; }
  };

  // The transfers of one direction. The first one is under way.
  class Queue {
   public:
    void Add(const Piece& piece) { pieces_.push_back(piece); }
    bool empty() const { return first_ == pieces_.size(); }
    const Piece& first() const { return pieces_[first_]; }
    void Drop() {
      if (++first_ < pieces_.size()) return;
      pieces_.clear();  // keeps its memory for the next
      first_ = 0;
    }

   private:
    std::vector<Piece> pieces_;
    size_t first_ = 0;
  };

  // A frame that is partly through.
  struct Frame {
    unsigned char head[kFrameHeadBytes];
    size_t done = 0;  // of head and data
  };

  bool MoveOut();
  bool MoveIn();
  bool ReadHead();
  void KeepNote();
  void CheckHead();
  void NoteReadError(int error);
  void BreakSend(int error);

  const LiveDescriptor socket_;
  bool readable_ = true;  // as far as is known; the system says when it becomes so again
  bool writable_ = true;
  Queue outgoing_;
  Queue incoming_;
  Frame out_;
  Frame in_;
  std::deque<int64_t> notes_;
  End end_ = End::kNone;
  std::string reason_;
  std::string received_;
  std::string expected_;
  int lost_ = -1;
};

}  // namespace tfdist

#endif  // TFDIST_SOCKET_CONNECTION_H_
