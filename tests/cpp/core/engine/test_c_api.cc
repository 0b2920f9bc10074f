// The C functions on the transport "self", and their messages.
#include <cmath>
#include <cstring>
#include <locale>
#include <string>
#include <vector>

#include "core/engine/c_api.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "engine_settings.h"
#include "expect.h"

namespace {

const std::string kText = EngineSettings(60, 600, 1 << 20, 1 << 20);
const char* const kSettings = kText.c_str();

int Init(const char* transport, const std::string& settings, std::string* text) {
  char message[1024] = "old";
  const int code =
      tfdist_init(transport, nullptr, 0, nullptr, settings.c_str(), message, sizeof(message));
  *text = message;
  return code;
}

// kText without the line of a setting.
std::string Without(const std::string& name) {
  const size_t begin = kText.find(name + "=");
  return kText.substr(0, begin) + kText.substr(kText.find('\n', begin) + 1);
}

struct CommaPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
};

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
    EXPECT_EQ(Init("self", kSettings, &text), 0);
    EXPECT_EQ(text, "");
    EXPECT_EQ(Init("self", kSettings, &text), 0);
    EXPECT_EQ(tfdist_is_initialized(), 1);
    EXPECT_EQ(tfdist_rank(), 0);
    EXPECT_EQ(tfdist_size(), 1);
    EXPECT_EQ(tfdist_local_rank() + tfdist_cross_rank(), 0);
    EXPECT_EQ(tfdist_local_size() * tfdist_cross_size(), 1);
    EXPECT_EQ(tfdist_is_homogeneous(), 1);
    EXPECT_EQ(tfdist_barrier(nullptr, nullptr, 0), 0);
    const int mine[2] = {round, 7};
    int all[2] = {-1, -1};
    EXPECT_EQ(tfdist_gather("g", mine, 2, all, nullptr, 0), 0);
    EXPECT(all[0] == round && all[1] == 7);
    EXPECT_EQ(tfdist_shutdown(round, nullptr, 0), 0);
    EXPECT_EQ(tfdist_is_initialized(), 0);
  }
}

TEST(CApiRefusesWrongSettings) {
  std::string text;
  EXPECT_EQ(Init("carrier pigeon", kSettings, &text), 12);
  EXPECT_CONTAINS(text, "transport 'carrier pigeon' is not in this build, which has 'self'");
  EXPECT_EQ(Init("self", EngineSettings(60, 0, 1, 0), &text), 3);
  EXPECT_CONTAINS(text, "stall_shutdown_seconds is 0");
  EXPECT_EQ(Init("self", EngineSettings(60, INFINITY, 1, 0), &text), 3);
  EXPECT_EQ(Init("self", EngineSettings(-1, 600, 1, 0), &text), 3);
  EXPECT_EQ(Init("self", EngineSettings(60, 600, -1, 0), &text), 3);
  for (int64_t bytes : {int64_t{-1}, int64_t{65535}, int64_t{1} << 31}) {
    EXPECT_EQ(Init("self", EngineSettings(60, 600, 1, bytes), &text), 3);
    EXPECT_CONTAINS(text, "the shared memory of a rank is " + std::to_string(bytes));
  }
  EXPECT_EQ(Init("self", Without("hierarchy"), &text), 3);
  EXPECT_CONTAINS(text, "the engine's setting hierarchy is missing. Rebuild tfdist");
  EXPECT_EQ(Init("self", kText + "window_byte=0\n", &text), 3);
  EXPECT_CONTAINS(text, "the engine has no setting window_byte. Rebuild tfdist");
  for (const char* wrong : {"hierarchy=flat", "process=1.5", "window_bytes=", "process"}) {
    const std::string line = wrong;
    EXPECT_EQ(Init("self", Without(line.substr(0, line.find('='))) + line, &text), 3);
    EXPECT_CONTAINS(text, "expected another value");
  }
  EXPECT_EQ(tfdist_is_initialized(), 0);
}

TEST(CApiReadsSettingsWhateverTheLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaPoint));
  tfdist::EngineConfig config;
  EXPECT_EQ(tfdist::ReadSettings(Without("nccl_libraries") + "nccl_libraries=/a\nnccl_libraries=/b",
                                 &config)
                .message(),
            "");
  std::locale::global(before);
  EXPECT_EQ(config.stall_shutdown_seconds, 600);
  EXPECT(config.nccl_libraries == tfdist::Paths({"/a", "/b"}));
}

TEST(CApiCutsLongMessagesOff) {
  char message[10];
  std::memset(message, 'x', sizeof(message));
  EXPECT_EQ(tfdist_init("none", nullptr, 0, nullptr, kSettings, message, sizeof(message)), 12);
  EXPECT_EQ(std::string(message), "transport");
}

TEST(CApiTakesTheRanksOfASingleProcess) {
  const int ranks[] = {0, 1};
  char message[256] = "";
  EXPECT_EQ(tfdist_init("self", ranks, 1, nullptr, kSettings, message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_shutdown(1, nullptr, 0), 0);
  const std::string alone = "init received a communicator, but this process was started without";
  EXPECT_EQ(tfdist_init("self", ranks, 2, nullptr, kSettings, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), alone);
  EXPECT_EQ(tfdist_init("self", ranks + 1, 1, nullptr, kSettings, message, sizeof(message)), 3);
  for (const int handle : {0, -1}) {  // those of MPICH are negative
    message[0] = '\0';
    EXPECT_EQ(tfdist_init("self", nullptr, 0, &handle, kSettings, message, sizeof(message)), 3);
    EXPECT_CONTAINS(std::string(message), alone);
  }
  EXPECT_EQ(tfdist_is_initialized(), 0);
}

TEST(CApiAddsAndRemovesProcessSets) {
  const int ranks[] = {0, 1};
  int number = -1;
  char message[256] = "";
  EXPECT_EQ(tfdist_add_process_set(ranks, 1, &number, message, sizeof(message)), 9);
  EXPECT_CONTAINS(std::string(message), "before tfdist.init()");
  std::string text;
  EXPECT_EQ(Init("self", kSettings, &text), 0);
  EXPECT_EQ(tfdist_add_process_set(ranks, 1, &number, message, sizeof(message)), 0);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(std::string(message), "");
  EXPECT_EQ(tfdist_add_process_set(ranks, 1, &number, nullptr, 0), 3);  // there already
  EXPECT_EQ(tfdist_add_process_set(ranks, 2, &number, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "received the ranks [0, 1]");
  EXPECT_EQ(tfdist_add_process_set(nullptr, 0, &number, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "received the ranks []");
  EXPECT_EQ(tfdist_remove_process_set(1, message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_remove_process_set(1, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "there is no process set 1 to remove");
  EXPECT_EQ(tfdist_shutdown(1, nullptr, 0), 0);
}

TEST(CApiGoesOnWithOtherRanks) {
  char message[1024] = "";
  EXPECT_EQ(tfdist_part(message, sizeof(message)), 9);
  EXPECT_CONTAINS(std::string(message), "before tfdist.init()");
  EXPECT_EQ(tfdist_check(message, sizeof(message)), 9);
  std::string text;
  EXPECT_EQ(Init("self", kSettings, &text), 0);
  EXPECT_EQ(tfdist_check(message, sizeof(message)), 0);
  const int ranks[] = {0};
  int set = 0;
  EXPECT_EQ(tfdist_add_process_set(ranks, 1, &set, nullptr, 0), 0);
  EXPECT_EQ(tfdist_part(message, sizeof(message)), 9);
  EXPECT_CONTAINS(std::string(message), "a job with process sets cannot continue");
  EXPECT_EQ(tfdist_check(nullptr, 0), 0);  // refused before anything has ended
  EXPECT_EQ(tfdist_remove_process_set(set, nullptr, 0), 0);
  EXPECT_EQ(tfdist_part(message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_check(message, sizeof(message)), 14);
  EXPECT_CONTAINS(std::string(message), "continues with other ranks");
  EXPECT_EQ(tfdist_size(), 1);
  const int host_ids[] = {0, 0};
  const char* const hosts[] = {"a", "a"};
  int descriptors[] = {-1, -1};
  tfdist_sockets sockets = {0, 2, host_ids, hosts, descriptors, nullptr, nullptr};
  EXPECT_EQ(tfdist_meet(&sockets, message, sizeof(message)), 13);  // where is the other?
  EXPECT_EQ(tfdist_check(nullptr, 0), 14);
  sockets.size = 1;
  EXPECT_EQ(tfdist_meet(&sockets, message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_check(nullptr, 0), 0);
  EXPECT_EQ(tfdist_shutdown(0, nullptr, 0), 0);
}

TEST(CApiTunesAnEngine) {
  char message[1024] = "";
  EXPECT_EQ(tfdist_tune(1 << 20, 0, "off", message, sizeof(message)), 9);
  EXPECT_CONTAINS(std::string(message), "before tfdist.init()");
  EXPECT_EQ(tfdist_most_chunk_bytes(), -1);
  std::string text;
  EXPECT_EQ(Init("self", kSettings, &text), 0);
  EXPECT_EQ(tfdist_most_chunk_bytes(), 0);  // a process alone shares nothing
  EXPECT_EQ(tfdist_tune(0, 0, "off", message, sizeof(message)), 0);
  EXPECT_EQ(tfdist_tune(-1, 0, "off", message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "the fusion threshold is -1 bytes");
  EXPECT_EQ(tfdist_tune(0, 8192, "off", nullptr, 0), 3);
  EXPECT_EQ(tfdist_tune(0, 0, "nccl", nullptr, 0), 3);
  EXPECT_EQ(tfdist_tune(0, 0, "flat", message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "the hierarchy of hosts is 'flat'; expected off, nccl");
  EXPECT_EQ(tfdist_shutdown(1, nullptr, 0), 0);
}

TEST(CApiPlansBucketsWithoutAnEngine) {
  const char* const dtypes[] = {"float32", "float16", "float32", "float32", "float16"};
  const int64_t bytes[] = {60, 10, 101, 40, 90};
  std::vector<int> buckets(5, -1);
  char message[256] = "old";
  EXPECT_EQ(tfdist_plan_buckets(dtypes, bytes, 5, 100, buckets.data(), message, sizeof(message)),
            0);
  EXPECT_EQ(std::string(message), "");
  const std::vector<int> expected = {1, 2, 0, 1, 2};  // the third is larger than a bucket
  for (int i = 0; i < 5; ++i) EXPECT_EQ(buckets[i], expected[i]);
  EXPECT_EQ(tfdist_plan_buckets(nullptr, nullptr, 0, 100, nullptr, nullptr, 0), 0);
  EXPECT_EQ(tfdist_is_initialized(), 0);
}

TEST(CApiRefusesToPlanWhatIsNoTensor) {
  const char* const dtypes[] = {"float32", "float8"};
  const int64_t bytes[] = {4, -1};
  int buckets[2];
  char message[256];
  EXPECT_EQ(tfdist_plan_buckets(dtypes, bytes, 2, 100, buckets, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "dtype is 'float8'");
  EXPECT_EQ(tfdist_plan_buckets(dtypes, bytes + 1, 1, 100, buckets, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "tensor 0 has -1 bytes");
  EXPECT_EQ(tfdist_plan_buckets(dtypes, bytes, -1, 100, buckets, message, sizeof(message)), 3);
  EXPECT_EQ(tfdist_plan_buckets(dtypes, bytes, 1, -1, buckets, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "a threshold of -1 bytes");
}

TEST(CApiDescribesGpusWithoutAnEngine) {
  const std::string given = Without("nccl_libraries") + "nccl_libraries=/nowhere/one.so\n";
  const char* const settings = given.c_str();
  std::vector<char> json(1 << 16);
  char message[256] = "old";
  const int size = static_cast<int>(json.size());
  EXPECT_EQ(tfdist_describe_gpus(settings, json.data(), size, message, sizeof(message)), 0);
  EXPECT_EQ(std::string(message), "");
  const std::string text = json.data();
  EXPECT_EQ(text.front(), '{');
  EXPECT_EQ(text.back(), '}');
  EXPECT_EQ(tfdist_is_initialized(), 0);
  const int needed = static_cast<int>(text.size()) + 1;
  EXPECT_EQ(tfdist_describe_gpus(settings, json.data(), needed, nullptr, 0), 0);
  EXPECT_EQ(tfdist_describe_gpus(settings, json.data(), needed - 1, message, sizeof(message)), 3);
  EXPECT_CONTAINS(std::string(message), "the report on the GPUs has " + std::to_string(needed));
  EXPECT_EQ(tfdist_describe_gpus(settings, nullptr, 1, message, sizeof(message)), 3);
}
