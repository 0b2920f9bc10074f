#include "socket/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace tfdist {
namespace {

constexpr size_t kMostNotes = 64;  // that are kept, for each connection

// The rest of a frame of which `done` bytes are through, as the system wants it.
struct FrameRest {
  FrameRest(unsigned char* head, void* data, int64_t bytes, size_t done) {
    const size_t head_done = done < kFrameHeadBytes ? done : kFrameHeadBytes;
    const size_t data_done = done - head_done;
    parts[0] = {head + head_done, kFrameHeadBytes - head_done};
    parts[1] = {static_cast<char*>(data) + data_done, static_cast<size_t>(bytes) - data_done};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
  }

  iovec parts[2];
  msghdr message = {};
};

bool IsTransient(int error) { return error == EINTR; }

bool MeansLater(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

std::string MessageOf(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

bool Connection::Move() {
  bool moved = false;
  if (end_ != End::kNone) return false;
  if (writable_ && !outgoing_.empty()) moved = MoveOut();
  if (readable_ && end_ == End::kNone) moved = (incoming_.empty() ? ReadHead() : MoveIn()) || moved;
  return moved;
}

bool Connection::MoveOut() {
  const Piece& piece = outgoing_.first();
  if (out_.done == 0) WriteFrameHead({piece.kind, piece.number}, out_.head);
  FrameRest rest(out_.head, piece.data, piece.bytes(), out_.done);
  const ssize_t sent = sendmsg(socket_.get(), &rest.message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    const int error = errno;
    if (MeansLater(error)) {
      writable_ = false;
    } else if (!IsTransient(error)) {
      BreakSend(error);
    }
    return false;
  }
  out_.done += static_cast<size_t>(sent);
  if (out_.done == kFrameHeadBytes + static_cast<size_t>(piece.bytes())) {
    out_.done = 0;
    outgoing_.Drop();
  }
  return true;
}

// What the peer has sent before counts, also if it takes no more: it may say why.
void Connection::BreakSend(int error) {
  readable_ = true;
  while (readable_ && end_ == End::kNone && (incoming_.empty() ? ReadHead() : MoveIn())) {
  }
  if (end_ == End::kAborted || end_ == End::kMalformed) return;
  end_ = End::kClosed;
  reason_ = std::strerror(error);  // a bare end of what the peer has sent would hide it
}

bool Connection::MoveIn() {
  if (in_.done == kFrameHeadBytes) CheckHead();  // it came before the transfer
  if (end_ != End::kNone) return false;
  const Piece& piece = incoming_.first();
  FrameRest rest(in_.head, piece.data, piece.bytes(), in_.done);
  const ssize_t received = recvmsg(socket_.get(), &rest.message, MSG_DONTWAIT);
  if (received <= 0) {
    NoteReadError(received == 0 ? 0 : errno);
    return false;
  }
  const bool had_head = in_.done >= kFrameHeadBytes;
  in_.done += static_cast<size_t>(received);
  if (!had_head) {
    while (in_.done >= kFrameHeadBytes && ReadFrameHead(in_.head).kind == FrameKind::kNote) {
      // What has followed the note in the memory of the transfer begins with a head.
      char* const rest_of_it = static_cast<char*>(piece.data);
      const size_t rest_bytes = in_.done - kFrameHeadBytes;
      const size_t head_bytes = std::min(rest_bytes, kFrameHeadBytes);
      KeepNote();
      std::memcpy(in_.head, rest_of_it, head_bytes);
      std::memmove(rest_of_it, rest_of_it + head_bytes, rest_bytes - head_bytes);
      in_.done = rest_bytes;
    }
    if (in_.done >= kFrameHeadBytes) CheckHead();
  }
  if (end_ == End::kNone && in_.done == kFrameHeadBytes + static_cast<size_t>(piece.bytes())) {
    in_.done = 0;
    incoming_.Drop();
  }
  return true;
}

bool Connection::ReadHead() {
  if (in_.done == kFrameHeadBytes) return false;
  const ssize_t received =
      recv(socket_.get(), in_.head + in_.done, kFrameHeadBytes - in_.done, MSG_DONTWAIT);
  if (received <= 0) {
    NoteReadError(received == 0 ? 0 : errno);
    return false;
  }
  in_.done += static_cast<size_t>(received);
  if (in_.done < kFrameHeadBytes) return true;
  if (ReadFrameHead(in_.head).kind == FrameKind::kNote) {
    KeepNote();
  } else {
    CheckHead();
  }
  return true;
}

// Takes the head away.
void Connection::KeepNote() {
  notes_.push_back(ReadFrameHead(in_.head).number);
  if (notes_.size() > kMostNotes) notes_.pop_front();
  in_.done = 0;
}

bool Connection::TakeNote(int64_t* note) {
  if (notes_.empty()) return false;
  *note = notes_.front();
  notes_.pop_front();
  return true;
}

// A head is as expected, or the end.
void Connection::CheckHead() {
  const FrameHead head = ReadFrameHead(in_.head);
  if (head.kind == FrameKind::kAbort && head.number <= std::numeric_limits<int>::max()) {
    end_ = End::kAborted;
    lost_ = static_cast<int>(head.number) - 1;
  } else if (head.kind != FrameKind::kData) {
    end_ = End::kMalformed;
    received_ = "a message of kind " + std::to_string(static_cast<int>(head.kind)) + " and " +
                MessageOf(head.number);
    expected_ = incoming_.empty() ? "one of kind 1" : MessageOf(incoming_.first().bytes());
  } else if (!incoming_.empty() && head.number != incoming_.first().bytes()) {
    end_ = End::kMalformed;
    received_ = MessageOf(head.number);
    expected_ = MessageOf(incoming_.first().bytes());
  }
}

// 0 is the end of what the peer has sent.
void Connection::NoteReadError(int error) {
  if (MeansLater(error)) {
    readable_ = false;
  } else if (!IsTransient(error)) {
    end_ = End::kClosed;
    reason_ = error == 0 ? "the other end closed it" : std::strerror(error);
  }
}

// Closes nothing: a socket that is closed with bytes to read takes back what is on its way.
void Connection::Abort(int lost) {
  if (out_.done == 0) {  // else the peer would take it for data
    WriteFrameHead({FrameKind::kAbort, int64_t{lost} + 1}, out_.head);
    static_cast<void>(send(socket_.get(), out_.head, kFrameHeadBytes, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  shutdown(socket_.get(), SHUT_WR);
}

}  // namespace tfdist
