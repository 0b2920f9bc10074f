// Calls that each rank announces in an order of its own.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/unordered_calls.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::DType;
using tfdist::Engine;
using tfdist::EngineConfig;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::UnorderedCalls;

namespace {

using Names = std::vector<std::string>;

// What the calls of one rank gave.
class Sums {
 public:
  // A sum whose result is kept under `key`.
  UnorderedCalls::Call Sum(const std::string& key, float value) {
    UnorderedCalls::Call call;
    call.key = key;
    call.run = [this, key, value](Engine* engine) {
      std::vector<float> values = {value};
      const Status status =
          engine->Allreduce(OptionsFor(key, 1), {ViewOf(&values)}, {ViewOf(&values)});
      std::lock_guard<std::mutex> lock(mutex_);
      sums_[key] = values[0];
      order_.push_back(key);
      return status;
    };
    call.done = [this](const Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      statuses_.push_back(status);
      came_.notify_all();
    };
    return call;
  }

  std::vector<Status> Wait(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT(
        came_.wait_for(lock, std::chrono::seconds(60), [&] { return statuses_.size() >= count; }));
    return statuses_;
  }

  std::map<std::string, float> sums_;
  Names order_;

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Status> statuses_;
};

UnorderedCalls::Find Finds(Engine* engine) {
  return [engine](std::shared_ptr<Engine>* found) {
    *found = std::shared_ptr<Engine>(engine, [](Engine*) {});
    return Status::Ok();
  };
}

Names Rotated(Names names, int by) {
  std::rotate(names.begin(), names.begin() + by % static_cast<int>(names.size()), names.end());
  return names;
}

}  // namespace

TEST(UnorderedCallsRunOnceInOneOrderWhateverTheOrderOfEachRank) {
  for (int size : kRankCounts) {
    std::mutex mutex;
    std::vector<Names> orders(size);
    RunRanks(size, [&](const RankContext& self) {
      Sums results;
      UnorderedCalls calls(Finds(self.engine));
      for (int step = 0; step < 20; ++step) {
        int place = 0;
        for (const std::string& name : Rotated({"a", "b", "c"}, self.rank + step)) {
          place = name[0] - 'a';
          calls.Announce(results.Sum(name, static_cast<float>((place + 1) * (self.rank + 1))));
        }
        for (const Status& status : results.Wait(3 * (step + 1))) EXPECT_EQ(status.message(), "");
        const float total = static_cast<float>(self.size * (self.size + 1) / 2);
        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(results.sums_[std::string(1, 'a' + i)], (i + 1) * total);
      }
      std::lock_guard<std::mutex> lock(mutex);
      orders[self.rank] = results.order_;
    });
    for (const Names& order : orders) EXPECT(order == orders[0]);
  }
}

// Rank 0 waits for it meanwhile, and runs what both have.
TEST(UnorderedCallsWaitForARankThatComesLate) {
  RunRanks(2, [&](const RankContext& self) {
    Sums results;
    UnorderedCalls calls(Finds(self.engine));
    if (self.rank == 0) calls.Announce(results.Sum("late", 1));
    calls.Announce(results.Sum("first", 1));
    if (self.rank == 1) {
      results.Wait(1);
      EXPECT_EQ(results.order_.front(), std::string("first"));
      calls.Announce(results.Sum("late", 1));
    }
    for (const Status& status : results.Wait(2)) EXPECT_EQ(status.message(), "");
  });
}

TEST(UnorderedCallsThatNotAllRanksAnnounceFailOnAllWithTheirNames) {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  for (int size : {2, 3}) {
    RunRanks(size, config, [](const RankContext& self) {
      Sums results;
      UnorderedCalls calls(Finds(self.engine));
      calls.Announce(results.Sum(self.rank == 0 ? "'a'" : "'b'", 1));
      const Status status = results.Wait(1)[0];
      EXPECT(status.code() == StatusCode::kDeadlineExceeded);
      EXPECT_CONTAINS(status.message(), "rank 0 waits for 'a'; rank 1 waits for 'b'");
      EXPECT(results.order_.empty());
      calls.Announce(results.Sum("'c'", 1));  // they are in step, and go on
      EXPECT_EQ(results.Wait(2)[1].message(), "");
    });
  }
}

TEST(UnorderedCallsDoNotWaitForARankThatHasJoined) {
  for (int size : {2, 3}) {
    RunRanks(size, [](const RankContext& self) {
      Sums results;
      UnorderedCalls calls(Finds(self.engine));
      calls.Announce(results.Sum("all", static_cast<float>(self.rank + 1)));
      EXPECT_EQ(results.Wait(1)[0].message(), "");
      if (self.rank > 0) {
        calls.Announce(results.Sum(self.rank == 1 ? "a" : "b", 1));
        calls.Announce(results.Sum(self.rank == 1 ? "b" : "a", 1));
        for (const Status& status : results.Wait(3)) EXPECT_EQ(status.message(), "");
        EXPECT_EQ(results.sums_["a"], static_cast<float>(self.size - 1));
      }
      int last = -1;
      EXPECT_EQ(self.engine->Join(&last).message(), "");
      EXPECT(last > 0);
    });
  }
}

TEST(UnorderedCallsTellWhoHasJoinedAndWhatThisRankWaitsFor) {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  const Fabric messages = {{0, 1, 2}, 0};
  RunRanksOn(messages, config, [](const RankContext& self) {
    Sums results;
    UnorderedCalls calls(Finds(self.engine));
    if (self.rank > 0) {
      calls.Announce(results.Sum(self.rank == 1 ? "'a'" : "'b'", 1));
      EXPECT_CONTAINS(results.Wait(1)[0].message(),
                      "rank 0 has joined; rank 1 waits for 'a'; rank 2 waits for 'b'. Every rank");
    }
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
  });
}

TEST(UnorderedCallsRefuseAKeyThatIsUnderWay) {
  RunRanks(2, [](const RankContext& self) {
    Sums results;
    UnorderedCalls calls(Finds(self.engine));
    if (self.rank == 0) {
      calls.Announce(results.Sum("'a'", 1));
      calls.Announce(results.Sum("'a'", 2));
      const Status status = results.Wait(1)[0];
      EXPECT(status.code() == StatusCode::kInvalidArgument);
      EXPECT_CONTAINS(status.message(), "'a' is already under way");
      calls.Announce(results.Sum("go", 1));
      EXPECT_EQ(results.Wait(3).back().message(), "");
    } else {
      calls.Announce(results.Sum("go", 1));
      results.Wait(1);
      calls.Announce(results.Sum("'a'", 1));
      EXPECT_EQ(results.Wait(2).back().message(), "");
      EXPECT_EQ(results.sums_["'a'"], 2.0f);
    }
  });
}

TEST(UnorderedCallsOfAProcessSetNeedItsRanksAlone) {
  RunRanks(3, [](const RankContext& self) {
    std::shared_ptr<Engine> pair;
    EXPECT_EQ(self.engine->AddProcessSet({0, 2}, 1, &pair).message(), "");
    if (self.rank != 1) {
      Sums whole, among;
      UnorderedCalls of_all(Finds(self.engine)), of_pair(Finds(pair.get()));
      of_all.Announce(whole.Sum("'x'", 1));  // may wait for rank 1 meanwhile
      for (int step = 1; step < 5; ++step) {
        of_pair.Announce(among.Sum("'x'", static_cast<float>(self.rank + 1)));
        EXPECT_EQ(among.Wait(step).back().message(), "");
        EXPECT_EQ(among.sums_["'x'"], 4.0f);
      }
      EXPECT_EQ(whole.Wait(1).back().message(), "");
      EXPECT_EQ(whole.sums_["'x'"], 3.0f);
    } else {
      Sums whole;
      UnorderedCalls of_all(Finds(self.engine));
      of_all.Announce(whole.Sum("'x'", 1));
      EXPECT_EQ(whole.Wait(1).back().message(), "");
    }
    EXPECT_EQ(self.engine->RemoveProcessSet(1).message(), "");
  });
}

TEST(UnorderedCallsThatFindNoEngineFailAtOnce) {
  Sums results;
  UnorderedCalls calls(
      [](std::shared_ptr<Engine>*) { return Status(StatusCode::kInvalidArgument, "no such set"); });
  calls.Announce(results.Sum("'x'", 1));
  EXPECT_EQ(results.Wait(1).back().message(), "no such set");
}

TEST(UnorderedCallsEndWithTheErrorThatTheirRanksMeet) {
  RunRanks(2, [](const RankContext& self) {
    Sums results;
    UnorderedCalls calls(Finds(self.engine));
    if (self.rank == 1) {
      EXPECT(self.engine->Barrier("elsewhere").code() == StatusCode::kFailedPrecondition);
      return;
    }
    calls.Announce(results.Sum("a", 1));
    const Status status = results.Wait(1)[0];
    EXPECT(status.code() == StatusCode::kFailedPrecondition);
    EXPECT_CONTAINS(status.message(), UnorderedCalls::kName);
  });
}
