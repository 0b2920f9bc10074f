// The C functions on the transport "socket": two processes, and descriptors that must not stay.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "core/engine/c_api.h"
#include "engine_settings.h"
#include "expect.h"
#include "socket_team.h"

namespace {

const std::string kSettings = EngineSettings(60, 600, 1 << 20, 1 << 20);
const int kHostIds[2] = {0, 0};
const char* const kHosts[2] = {"localhost", "localhost"};

SocketRank* connections = nullptr;  // of this process

int Listen(int channel, int* port, char*, int) {
  return static_cast<int>(connections->Listen(channel, port).code());
}

int Connect(int channel, const int* ranks, const int* ports, int count, int* descriptors,
            char* message, int message_size) {
  std::vector<int> found;
  const tfdist::Status status =
      connections->Connect(channel, std::vector<int>(ranks, ranks + count),
                           std::vector<int>(ports, ports + count), &found);
  std::copy(found.begin(), found.end(), descriptors);
  std::snprintf(message, static_cast<size_t>(message_size), "%s", status.message().c_str());
  return static_cast<int>(status.code());
}

int Init(int rank, int size, const int* descriptors, const std::string& settings,
         std::string* text) {
  char message[1024] = "old";
  const tfdist_sockets sockets = {rank, size, kHostIds, kHosts, descriptors, Listen, Connect};
  const int code = tfdist_init_sockets(&sockets, settings.c_str(), message, sizeof(message));
  *text = message;
  return code;
}

// One of two processes, from its start to its end. Returns how many expectations failed.
int RunProcess(int rank, int descriptor) {
  const int before = expect::Failures();
  SocketRank own(rank);
  connections = &own;
  const int descriptors[2] = {rank == 0 ? -1 : descriptor, rank == 0 ? descriptor : -1};
  std::string text;
  EXPECT_EQ(Init(rank, 2, descriptors, kSettings, &text), 0);
  EXPECT_EQ(text, "");
  EXPECT(fcntl(descriptor, F_GETFD) < 0);
  EXPECT_EQ(tfdist_rank(), rank);
  EXPECT_EQ(tfdist_size(), 2);
  EXPECT_EQ(tfdist_local_size(), 2);
  int all[2] = {};
  EXPECT_EQ(tfdist_gather("g", &rank, 1, all, nullptr, 0), 0);
  EXPECT(all[0] == 0 && all[1] == 1);
  const int members[2] = {0, 1};
  int set = 0;
  char message[1024] = "";
  EXPECT_EQ(tfdist_add_process_set(members, 2, &set, message, sizeof(message)), 0);
  EXPECT_EQ(std::string(message), "");
  own.FailConnect(8);
  const int alone[1] = {0};
  EXPECT_EQ(tfdist_add_process_set(alone, 1, &set, message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_remove_process_set(1, message, sizeof(message)), 0);
  own.FailConnect(12);
  EXPECT_EQ(tfdist_add_process_set(members, 2, &set, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "could not connect for channel 12: the cable is cut");
  EXPECT_EQ(tfdist_shutdown(1, message, sizeof(message)), 0);
  return expect::Failures() - before;
}

}  // namespace

TEST(SocketInitOfTwoProcesses) {
  const int open = OpenDescriptors();
  const SocketPair pair = MakeSocketPair();
  const pid_t child = fork();
  if (child == 0) {
    close(pair.ends[0]);
    _exit(RunProcess(1, pair.ends[1]));
  }
  close(pair.ends[1]);
  EXPECT_EQ(RunProcess(0, pair.ends[0]), 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(OpenDescriptors(), open);
}

TEST(SocketInitTakesDescriptorsWhateverItReturns) {
  const int open = OpenDescriptors();
  std::string text;
  for (int wrong = 0; wrong < 3; ++wrong) {
    const SocketPair pair = MakeSocketPair();
    const int descriptors[2] = {-1, pair.ends[0]};
    EXPECT_EQ(
        Init(wrong == 0 ? 2 : 0, 2, descriptors, wrong == 1 ? "" : kSettings + "no=1\n", &text), 3);
    close(pair.ends[1]);
    EXPECT_EQ(OpenDescriptors(), open);
  }
  EXPECT_EQ(Init(0, 0, nullptr, kSettings, &text), 3);
  EXPECT_CONTAINS(text, "a job received 0 ranks");
}

TEST(SocketInitOfASingleProcessDoesNothingTwice) {
  const int descriptors[1] = {-1};
  std::string text;
  EXPECT_EQ(Init(0, 1, descriptors, kSettings, &text), 0);
  EXPECT_EQ(tfdist_size(), 1);
  const SocketPair pair = MakeSocketPair();
  const int again[2] = {-1, pair.ends[0]};
  EXPECT_EQ(Init(0, 2, again, kSettings, &text), 0);
  EXPECT_EQ(tfdist_size(), 1);
  EXPECT(fcntl(pair.ends[0], F_GETFD) < 0);
  close(pair.ends[1]);
  EXPECT_EQ(tfdist_shutdown(1, nullptr, 0), 0);
}
