// The C functions on the transport "self", and their messages.
#include <cmath>
#include <cstring>
#include <string>

#include "core/c_api.h"
#include "core/status.h"
#include "core/world.h"
#include "expect.h"

namespace {

int Init(const char* transport, double warning, double shutdown, int64_t threshold,
         std::string* text) {
  char message[1024] = "old";
  const int code = tfdist_init(transport, warning, shutdown, threshold, message, sizeof(message));
  *text = message;
  return code;
}

}  // namespace

TEST(CApiWithoutAnEngine) {
  EXPECT_EQ(tfdist_is_initialized(), 0);
  EXPECT_EQ(tfdist_rank(), -1);
  EXPECT_EQ(tfdist_is_homogeneous(), -1);
  char message[256];
  EXPECT_EQ(tfdist_barrier("b", message, sizeof(message)), 9);
  EXPECT_CONTAINS(std::string(message), "init()");
  EXPECT_EQ(tfdist_shutdown(1, message, sizeof(message)), 0);
  EXPECT_EQ(std::string(message), "");
}

TEST(CApiLifeOfASingleProcess) {
  std::string text;
  for (int round = 0; round < 2; ++round) {  // "self" can be started again
    EXPECT_EQ(Init("self", 60, 1800, 1 << 20, &text), 0);
    EXPECT_EQ(text, "");
    EXPECT_EQ(Init("self", 60, 1800, 1 << 20, &text), 0);
    EXPECT_EQ(tfdist_is_initialized(), 1);
    EXPECT_EQ(tfdist_rank(), 0);
    EXPECT_EQ(tfdist_size(), 1);
    EXPECT_EQ(tfdist_local_rank() + tfdist_cross_rank(), 0);
    EXPECT_EQ(tfdist_local_size() * tfdist_cross_size(), 1);
    EXPECT_EQ(tfdist_is_homogeneous(), 1);
    EXPECT_EQ(tfdist_barrier(nullptr, nullptr, 0), 0);
    EXPECT_EQ(tfdist_shutdown(round, nullptr, 0), 0);
    EXPECT_EQ(tfdist_is_initialized(), 0);
  }
}

TEST(CApiRefusesWrongSettings) {
  std::string text;
  EXPECT_EQ(Init("carrier pigeon", 60, 1800, 1, &text), 12);
  EXPECT_CONTAINS(text, "transport 'carrier pigeon' is not in this build, which has 'self'");
  EXPECT_EQ(Init("self", 60, 0, 1, &text), 3);
  EXPECT_CONTAINS(text, "stall_shutdown_seconds is 0");
  EXPECT_EQ(Init("self", 60, INFINITY, 1, &text), 3);
  EXPECT_EQ(Init("self", -1, 1800, 1, &text), 3);
  EXPECT_EQ(Init("self", 60, 1800, -1, &text), 3);
  EXPECT_EQ(tfdist_is_initialized(), 0);
}

TEST(CApiCutsLongMessagesOff) {
  char message[10];
  std::memset(message, 'x', sizeof(message));
  EXPECT_EQ(tfdist_init("none", 60, 1800, 1, message, sizeof(message)), 12);
  EXPECT_EQ(std::string(message), "transport");
}

TEST(CApiBuildInfoIsJson) {
  const std::string info = tfdist_build_info();
  EXPECT_EQ(info.front(), '{');
  EXPECT_EQ(info.back(), '}');
  for (const char* key : {"\"tensorflow\": \"", "\"mpi\": \"", "\"compiler\": \""}) {
    EXPECT_CONTAINS(info, key);
  }
}

TEST(WorldKeepsAnEngineAliveForItsCaller) {
  std::string text;
  EXPECT_EQ(Init("self", 60, 1800, 1, &text), 0);
  const std::shared_ptr<tfdist::Engine> held = tfdist::World::Get();
  EXPECT_EQ(tfdist_shutdown(0, nullptr, 0), 0);
  EXPECT(held->Barrier("still here").ok());
}
