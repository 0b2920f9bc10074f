// One end of a connection, and at the other end whoever sends what it likes.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "expect.h"
#include "rank_team.h"
#include "socket/connection.h"
#include "socket/socket_communicator.h"
#include "socket_team.h"

using tfdist::Connection;
using tfdist::FrameHead;
using tfdist::FrameKind;
using tfdist::kFrameHeadBytes;
using tfdist::LiveDescriptor;
using tfdist::SocketCommunicator;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

std::string HeadOf(int kind, int64_t number) {
  unsigned char bytes[kFrameHeadBytes];
  tfdist::WriteFrameHead({static_cast<FrameKind>(kind), number}, bytes);
  return std::string(bytes, bytes + kFrameHeadBytes);
}

// A connection, and a peer that is no Connection.
struct Stranger {
  Stranger() : pair(MakeSocketPair()), connection(LiveDescriptor(pair.ends[0])) {}
  ~Stranger() {
    if (open) close(pair.ends[1]);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void Say(const std::string& bytes) {
    EXPECT_EQ(send(pair.ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Leave() {
    open = false;
    close(pair.ends[1]);
  }

  SocketPair pair;
  bool open = true;
  Connection connection;
};

// Moves until nothing is left to move or the connection has ended; loopback keeps nothing back.
void MoveToTheEnd(Connection* connection) {
  for (int moves = 0; moves < 1'000'000 && connection->end() == Connection::End::kNone; ++moves) {
    connection->Wake(true, true);
    if (!connection->Move() && !connection->busy()) return;
  }
}

}  // namespace

TEST(FrameHeadIsLittleEndianBelowItsKind) {
  EXPECT(HeadOf(1, 0x0102030405) == std::string("\5\4\3\2\1\0\0\1", 8));
  const FrameHead head = tfdist::ReadFrameHead(
      reinterpret_cast<const unsigned char*>("\377\377\377\377\377\377\377\2"));
  EXPECT(head.kind == FrameKind::kAbort);
  EXPECT_EQ(head.number, (int64_t{1} << 56) - 1);
}

TEST(ConnectionMovesMessagesOfManySizesInOrder) {
  const SocketPair pair = MakeSocketPair();
  Connection near{LiveDescriptor(pair.ends[0])};
  Connection far{LiveDescriptor(pair.ends[1])};
  std::vector<std::string> sent;
  for (int64_t bytes : {1, 7, 8, 9, 1000, 3'000'001, 2}) {
    sent.emplace_back(static_cast<size_t>(bytes), static_cast<char>('a' + sent.size()));
  }
  std::vector<std::string> received;
  for (const std::string& text : sent) received.emplace_back(text.size(), ' ');
  for (size_t i = 0; i < sent.size(); ++i) {
    near.Send(sent[i].data(), static_cast<int64_t>(sent[i].size()));
    far.Receive(&received[i][0], static_cast<int64_t>(received[i].size()));
  }
  while (near.busy() || far.busy()) {
    near.Wake(true, true);
    far.Wake(true, true);
    near.Move();
    far.Move();
    if (near.end() != Connection::End::kNone || far.end() != Connection::End::kNone) break;
  }
  EXPECT(received == sent);
}

TEST(ConnectionKeepsAMessageThatCameBeforeItsTransfer) {
  Stranger stranger;
  stranger.Say(HeadOf(1, 4) + "data");
  MoveToTheEnd(&stranger.connection);
  EXPECT(stranger.connection.end() == Connection::End::kNone);
  std::string data(4, ' ');
  stranger.connection.Receive(&data[0], 4);
  MoveToTheEnd(&stranger.connection);
  EXPECT_EQ(data, "data");
}

// Wherever the reads of the system end, and whether the transfer was there first.
TEST(ConnectionTakesNotesFromBetweenMessages) {
  const std::string bytes = HeadOf(3, 5) + HeadOf(3, 1 << 20) + HeadOf(1, 12) + "twelve bytes" +
                            HeadOf(3, 7) + HeadOf(1, 3) + "end";
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (bool early : {false, true}) {
      Stranger stranger;
      Connection& connection = stranger.connection;
      std::string data(12, ' ');
      std::string end(3, ' ');
      const auto receive = [&] {
        connection.Receive(&data[0], 12);
        connection.Receive(&end[0], 3);
      };
      if (early) receive();
      stranger.Say(bytes.substr(0, first));
      for (int move = 0; move < 20; ++move) {
        connection.Wake(true, false);
        connection.Move();
      }
      stranger.Say(bytes.substr(first));
      if (!early) receive();
      MoveToTheEnd(&connection);
      EXPECT(connection.end() == Connection::End::kNone);
      EXPECT_EQ(data + end, "twelve bytesend");
      for (int64_t expected : {5, 1 << 20, 7}) {
        int64_t note = 0;
        EXPECT(connection.TakeNote(&note));
        EXPECT_EQ(note, expected);
      }
      int64_t none = 0;
      EXPECT(!connection.TakeNote(&none));
    }
  }
}

TEST(ConnectionKeepsAFewNotesThatNobodyTakes) {
  Stranger stranger;
  for (int note = 0; note < 1000; ++note) stranger.Say(HeadOf(3, note));
  stranger.Say(HeadOf(1, 4));
  for (int move = 0; move < 1001; ++move) {
    EXPECT(!stranger.connection.holds_message());
    stranger.connection.Wake(true, false);
    stranger.connection.Move();
  }
  EXPECT(stranger.connection.holds_message());
  int64_t note = 0;
  int kept = 0;
  while (stranger.connection.TakeNote(&note)) ++kept;
  EXPECT_EQ(kept, 64);
  EXPECT_EQ(note, 999);
}

TEST(ConnectionSendsANoteBehindItsMessages) {
  const SocketPair pair = MakeSocketPair();
  Connection near{LiveDescriptor(pair.ends[0])};
  Connection far{LiveDescriptor(pair.ends[1])};
  const std::string text(3'000'000, 'x');
  std::string received(text.size(), ' ');
  near.Send(text.data(), static_cast<int64_t>(text.size()));
  near.SendNote((int64_t{1} << 56) - 1);
  far.Receive(&received[0], static_cast<int64_t>(received.size()));
  int64_t note = 0;
  for (int moves = 0; moves < 1'000'000 && !far.TakeNote(&note); ++moves) {
    near.Wake(true, true);
    far.Wake(true, true);
    near.Move();
    far.Move();
  }
  EXPECT(!near.busy());
  EXPECT(received == text);
  EXPECT_EQ(note, (int64_t{1} << 56) - 1);
}

TEST(ConnectionRefusesWhatIsNotExpected) {
  struct Case {
    std::string bytes;
    const char* received;
    const char* expected;
  };
  const Case cases[] = {
      {HeadOf(1, 5) + "12345", "5 bytes", "4 bytes"},
      {HeadOf(1, 0), "0 bytes", "4 bytes"},
      {HeadOf(1, (int64_t{1} << 56) - 1), "72057594037927935 bytes", "4 bytes"},
      {HeadOf(0, 4) + "1234", "a message of kind 0 and 4 bytes", "4 bytes"},
      {HeadOf(255, 4) + "1234", "a message of kind 255 and 4 bytes", "4 bytes"},
      {HeadOf(2, int64_t{1} << 40), "a message of kind 2 and 1099511627776 bytes", "4 bytes"},
  };
  for (const Case& wrong : cases) {
    for (bool early : {false, true}) {
      Stranger stranger;
      std::string data(4, ' ');
      stranger.Say(wrong.bytes);
      if (early) MoveToTheEnd(&stranger.connection);
      stranger.connection.Receive(&data[0], 4);
      MoveToTheEnd(&stranger.connection);
      EXPECT(stranger.connection.end() == Connection::End::kMalformed);
      EXPECT_EQ(stranger.connection.received(), wrong.received);
      const bool known =
          !early || wrong.bytes[7] == 1;  // of a kind that is none nothing is awaited
      EXPECT_EQ(stranger.connection.expected(), known ? wrong.expected : "one of kind 1");
    }
  }
}

TEST(ConnectionReadsAnAbortBeforeAndInsteadOfAMessage) {
  for (bool early : {false, true}) {
    for (int lost : {-1, 0, 7, 2'147'483'646}) {
      Stranger stranger;
      std::string data(100, ' ');
      if (!early) stranger.connection.Receive(&data[0], 100);
      stranger.Say(HeadOf(2, int64_t{lost} + 1));
      stranger.Leave();
      MoveToTheEnd(&stranger.connection);
      EXPECT(stranger.connection.end() == Connection::End::kAborted);
      EXPECT_EQ(stranger.connection.lost(), lost);
    }
  }
}

TEST(ConnectionThatTakesNoMoreStillTellsWhy) {
  Stranger stranger;
  const std::string data(30'000'000, 'x');  // more than the system keeps
  stranger.Say(HeadOf(2, 4));
  stranger.Leave();
  stranger.connection.Send(data.data(), static_cast<int64_t>(data.size()));
  MoveToTheEnd(&stranger.connection);
  EXPECT(stranger.connection.end() == Connection::End::kAborted);
  EXPECT_EQ(stranger.connection.lost(), 3);
}

TEST(ConnectionSaysWhyItIsClosed) {
  Stranger stranger;
  char byte = 0;
  stranger.Leave();
  stranger.connection.Receive(&byte, 1);
  MoveToTheEnd(&stranger.connection);
  EXPECT(stranger.connection.end() == Connection::End::kClosed);
  EXPECT_EQ(stranger.connection.reason(), "the other end closed it");
}

// Whatever a peer sends, an exchange ends with a status and writes nowhere else.
TEST(ConnectionFuzz) {
  constexpr size_t kBytes = 16;
  std::mt19937 random(20261126);
  const auto below = [&random](uint32_t end) { return random() % end; };
  const tfdist::EngineConfig config = TestConfig();
  for (int round = 0; round < 400; ++round) {
    std::string bytes;
    for (uint32_t frame = below(3) + 1; frame > 0; --frame) {
      const uint32_t length = below(4) == 0 ? below(40) : uint32_t{kBytes};
      const int kind = below(8) == 0    ? static_cast<int>(below(256))
                       : below(12) == 0 ? 2
                       : below(6) == 0  ? 3
                                        : 1;
      bytes +=
          HeadOf(kind, below(10) == 0 ? static_cast<int64_t>(random()) << 20 : int64_t{length});
      for (uint32_t i = 0; i < length; ++i) bytes += static_cast<char>(random());
    }
    if (below(3) == 0) bytes.resize(below(static_cast<uint32_t>(bytes.size()) + 1));
    if (below(3) == 0 && !bytes.empty())
      bytes[below(static_cast<uint32_t>(bytes.size()))] ^= 1 << below(8);
    const SocketPair pair = MakeSocketPair();
    std::vector<LiveDescriptor> sockets(2);
    sockets[1] = LiveDescriptor(pair.ends[0]);
    std::unique_ptr<tfdist::Communicator> communicator;
    EXPECT(SocketCommunicator::Open(tfdist::MakeTopology(0, {0, 0}, {"a", "b"}), nullptr,
                                    std::move(sockets), &communicator)
               .ok());
    EXPECT_EQ(send(pair.ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    shutdown(pair.ends[1], SHUT_WR);
    tfdist::Wait wait(config, communicator->topology(), [] { return std::string("fuzz"); });
    std::vector<char> memory(3 * kBytes, 'm');
    char own[kBytes] = {};
    Status status;
    for (int call = 0; call < 4 && status.ok(); ++call) {
      status = communicator->Exchange({{1, own, kBytes}}, {{1, &memory[kBytes], kBytes}}, &wait);
    }
    EXPECT(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kInternal);
    EXPECT_CONTAINS(status.message(), "rank 1 (host b)");
    EXPECT(std::string(memory.data(), kBytes) == std::string(kBytes, 'm'));
    EXPECT(std::string(&memory[2 * kBytes], kBytes) == std::string(kBytes, 'm'));
    close(pair.ends[1]);
  }
}
