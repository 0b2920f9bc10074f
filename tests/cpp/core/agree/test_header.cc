// The header itself: what it covers, and a count of calls that differs.
#include <string>

#include "core/agree/header.h"
#include "core/wire/loopback_communicator.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::Call;
using tfdist::Hash;
using tfdist::HeaderCheck;
using tfdist::LoopbackCommunicator;
using tfdist::Operation;
using tfdist::Status;
using tfdist::Wait;

namespace {

Status AgreeOnBarrier(HeaderCheck* check, tfdist::Communicator* communicator) {
  Call call;
  call.name = "b";
  const tfdist::EngineConfig config = TestConfig();
  Wait wait(config, communicator->topology(), [] { return std::string("barrier"); });
  tfdist::Agreement agreement;
  return check->Agree(call, communicator, &wait, &agreement);
}

}  // namespace

TEST(HeaderFindsRanksThatMadeUnequalNumbersOfCallsAndMendsIt) {
  RunRanks(3, [](const RankContext& self) {
    HeaderCheck check;
    if (self.rank == 2) {  // one more call than the others, where they cannot see it
      const auto alone = LoopbackCommunicator::Create(1);
      EXPECT(AgreeOnBarrier(&check, alone[0].get()).ok());
    }
    EXPECT_CONTAINS(AgreeOnBarrier(&check, self.communicator).message(),
                    "number of earlier collectives is 0 on ranks 0-1, 1 on rank 2.");
    EXPECT_EQ(AgreeOnBarrier(&check, self.communicator).message(), "");
  });
}

TEST(HeaderHashDependsOnEveryField) {
  const std::vector<std::string> names = {"a"};
  const std::vector<tfdist::TensorView> tensors = {{tfdist::DType::kFloat32, {2, 3}, nullptr}};
  Call call;
  call.operation = Operation::kAllreduce;
  call.name = "x";
  call.tensor_names = &names;
  call.tensors = &tensors;
  const uint64_t original = Hash(call);
  EXPECT_EQ(Hash(call), original);
  const std::vector<std::string> other_names = {"b"};
  const std::vector<tfdist::TensorView> other_tensors[] = {
      {{tfdist::DType::kInt32, {2, 3}, nullptr}},
      {{tfdist::DType::kFloat32, {3, 2}, nullptr}},
      {{tfdist::DType::kFloat32, {2, 3, 1}, nullptr}},
  };
  std::vector<Call> changed(9, call);
  changed[0].operation = Operation::kBroadcast;
  changed[1].name = "y";
  changed[2].reduction = tfdist::Reduction::kMin;
  changed[3].compression = tfdist::Compression::kFp16;
  changed[4].prescale = -1;
  changed[5].postscale = -1;
  changed[6].root = 1;
  changed[7].fusion_threshold_bytes = 1;
  changed[8].weighted = true;
  for (const auto& other : other_tensors) {
    changed.push_back(call);
    changed.back().tensors = &other;
  }
  changed.push_back(call);
  changed.back().tensor_names = &other_names;
  changed.push_back(call);
  changed.back().name = std::string("x\0", 2);  // equal but for its length when padded with zeros
  for (const Call& other : changed) EXPECT(Hash(other) != original);
  call.weight = 5;
  EXPECT_EQ(Hash(call), original);  // it may differ by rank and travels beside the hash
  Call join;
  join.operation = Operation::kJoin;
  join.weight = 3;
  EXPECT_EQ(Hash(join), tfdist::kJoinedHash);
  call.error = "wrong";
  EXPECT_EQ(Hash(call), tfdist::kInvalidHash);
}

TEST(HeaderDescriptionSurvivesItsJourney) {
  const std::vector<tfdist::Field> fields = {{"name", std::string("a\0b", 3)}, {"empty", ""}};
  const std::vector<tfdist::Field> parsed = tfdist::Parse(tfdist::Serialize(fields));
  EXPECT_EQ(parsed.size(), 2u);
  EXPECT_EQ(parsed[0].value, "a?b");
  EXPECT_EQ(parsed[1].label, "empty");
  EXPECT_EQ(parsed[1].value, "");
}
