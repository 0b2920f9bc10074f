#include "shm/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tfdist {

Status ProcessWatch::Add(int64_t process) {
  processes_.emplace_back(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
  if (processes_.back().get() >= 0) return Status::Ok();
  return Status(StatusCode::kInternal, "watching process " + std::to_string(process) +
                                           " (pidfd_open) failed: " + std::strerror(errno));
}

// The descriptor of a process becomes readable when it ends; poll passes over negative ones.
std::vector<int> ProcessWatch::Ended() const {
  std::vector<pollfd> polls;
  for (const Descriptor& process : processes_) polls.push_back({process.get(), POLLIN, 0});
  std::vector<int> ended;
  if (poll(polls.data(), polls.size(), 0) <= 0) return ended;
  for (size_t i = 0; i < polls.size(); ++i) {
    if ((polls[i].revents & POLLIN) != 0) ended.push_back(static_cast<int>(i));
  }
  return ended;
}

}  // namespace tfdist
