#include "tf/data/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

using GivenUp = std::function<bool()>;

constexpr int64_t kNsPerMs = 1000 * 1000;
constexpr int64_t kPauseMs = 200;
constexpr int64_t kConnectMs = 1000;
constexpr int64_t kAnswerMs = 5000;

// The preface of a client of HTTP/2 (RFC 9113, 3.4): fixed words, and a frame of settings without
// any. The server's begins with such a frame too: three bytes of length, then the type, 4.
constexpr std::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kTypeAt = 3;
constexpr char kSettings = 4;

// A file descriptor that is closed at the end.
class Socket {
 public:
  explicit Socket(int family)
      : file_(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (file_ >= 0) close(file_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int file() const { return file_; }

  // Whether one of `events` comes until then.
  bool Wait(int16_t events, int64_t end_ns, const GivenUp& given_up) const {
    while (!given_up()) {
      const int64_t left_ms = (end_ns - SteadyNs()) / kNsPerMs;
      pollfd watched = {file_, events, 0};
      const int64_t slice_ms = std::clamp<int64_t>(left_ms, 0, kPauseMs);
      if (poll(&watched, 1, static_cast<int>(slice_ms)) == 1) return true;
      if (left_ms <= 0) return false;
    }
    return false;
  }

 private:
  const int file_;
};

Answer Connect(const Socket& made, const addrinfo& address, int64_t wait_ms,
               const GivenUp& given_up) {
  if (made.file() < 0) return Answer::kUnreachable;
  int error = 0;
  if (connect(made.file(), address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    socklen_t size = sizeof(error);
    const int64_t end_ns = SteadyNs() + std::min(wait_ms, kConnectMs) * kNsPerMs;
    if (!made.Wait(POLLOUT, end_ns, given_up)) return Answer::kUnreachable;
    if (getsockopt(made.file(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error == 0) return Answer::kYes;
  return error == ECONNREFUSED ? Answer::kRefused : Answer::kUnreachable;
}

Answer Greet(const Socket& made, int64_t wait_ms, const GivenUp& given_up) {
  const int64_t end_ns = SteadyNs() + std::min(wait_ms, kAnswerMs) * kNsPerMs;
  // A new connection has room for these few bytes.
  if (send(made.file(), kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) < 0) {
    return Answer::kOther;
  }
  std::string said;
  while (said.size() <= kTypeAt) {
    if (!made.Wait(POLLIN, end_ns, given_up)) return Answer::kSilent;
    char buffer[64];
    const ssize_t size = recv(made.file(), buffer, sizeof(buffer), 0);
    if (size <= 0) return Answer::kOther;  // it has closed the connection
    said.append(buffer, static_cast<size_t>(size));
  }
  return said[kTypeAt] == kSettings ? Answer::kYes : Answer::kOther;
}

}  // namespace

Answer Ask(const std::string& service, int64_t wait_ms, const GivenUp& given_up) {
  const size_t colon = service.rfind(':');
  if (colon == std::string::npos) return Answer::kUnreachable;
  std::string host = service.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);  // IPv6
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), service.c_str() + colon + 1, &wanted, &found) != 0) {
    return Answer::kUnreachable;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  Answer answer = Answer::kUnreachable;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Socket made(each->ai_family);
    answer = Connect(made, *each, wait_ms, given_up);
    if (answer == Answer::kYes) return Greet(made, wait_ms, given_up);
  }
  return answer;
}

Answer AwaitAnswer(const std::string& service, int64_t wait_ms, const GivenUp& given_up) {
  const int64_t end_ns = SteadyNs() + wait_ms * kNsPerMs;
  for (;;) {
    const int64_t left_ms = std::max<int64_t>(1, (end_ns - SteadyNs()) / kNsPerMs);
    const Answer answer = Ask(service, left_ms, given_up);
    // An attempt in the little time that is left would only find silence.
    const bool over = SteadyNs() + 2 * kPauseMs * kNsPerMs >= end_ns;
    if (answer == Answer::kYes || given_up() || over) return answer;
    std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
  }
}

}  // namespace tfdist
