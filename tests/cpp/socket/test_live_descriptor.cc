// Descriptors that a forked process must not keep.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "expect.h"
#include "socket/live_descriptor.h"
#include "socket_team.h"

using tfdist::LiveDescriptor;

namespace {

bool IsOpen(int number) { return fcntl(number, F_GETFD) >= 0; }

}  // namespace

TEST(LiveDescriptorIsClosedWithItsOwner) {
  const SocketPair pair = MakeSocketPair();
  {
    LiveDescriptor first(pair.ends[0]);
    LiveDescriptor second(std::move(first));
    LiveDescriptor third;
    third = std::move(second);
    EXPECT_EQ(third.get(), pair.ends[0]);
    EXPECT_EQ(first.get(), -1);
    EXPECT_EQ(second.get(), -1);
    EXPECT(IsOpen(pair.ends[0]));
  }
  EXPECT(!IsOpen(pair.ends[0]));
  close(pair.ends[1]);
}

// The child of a child lives on, and its parent's peer still sees that parent end.
TEST(LiveDescriptorIsClosedInAForkedProcess) {
  const SocketPair pair = MakeSocketPair();
  int orders[2];
  int answers[2];
  EXPECT_EQ(pipe(orders) + pipe(answers), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    close(pair.ends[1]);
    close(orders[1]);
    auto* const live = new LiveDescriptor(pair.ends[0]);
    if (fork() != 0) _exit(0);
    const bool closed = !IsOpen(pair.ends[0]);
    // Its number may be another file's by now, which the owner leaves alone.
    const int other = fcntl(orders[0], F_DUPFD, pair.ends[0]);
    delete live;
    const bool kept = IsOpen(other);
    char byte = 0;
    if (read(orders[0], &byte, 1) != 1) _exit(1);
    byte = closed && kept && other == pair.ends[0] ? 'y' : 'n';
    _exit(write(answers[1], &byte, 1) == 1 ? 0 : 1);
  }
  close(pair.ends[0]);
  close(orders[0]);
  close(answers[1]);
  timeval limit = {30, 0};
  EXPECT_EQ(setsockopt(pair.ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
  char byte = 0;
  EXPECT_EQ(recv(pair.ends[1], &byte, 1, 0), 0);  // its end, not the time limit
  EXPECT_EQ(write(orders[1], "?", 1), 1);
  EXPECT_EQ(read(answers[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  for (int number : {pair.ends[1], orders[1], answers[0]}) close(number);
}
