// The words of a stall report, from values.
#include <string>

#include "core/watch/stall_report.h"
#include "expect.h"

using tfdist::Activity;
using tfdist::LastSeen;
using tfdist::MissingRank;
using tfdist::Stall;

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr char kStacks[] = ". Its Python stacks: kill -USR1 71 on host a";

Activity ActivityOf(Activity::State state, int64_t call, const std::string& title) {
  Activity activity;
  activity.state = state;
  activity.call = call;
  activity.since_ns = 39 * kSecond;
  activity.SetTitle(title);
  return activity;
}

MissingRank Missing(const Activity& activity) {
  MissingRank missing;
  missing.rank = 1;
  missing.host = "a";
  missing.process = 71;
  missing.is_here = true;
  missing.activity = activity;
  return missing;
}

// At second 100, from inside of call 13.
Stall Inside() {
  Stall stall;
  stall.own = ActivityOf(Activity::kInside, 13, "allreduce 'grads'");
  stall.now_ns = 100 * kSecond;
  return stall;
}

std::string Seen(const MissingRank& missing) { return LastSeen(missing, Inside()); }

std::string Seen(const Activity& activity) { return Seen(Missing(activity)); }

}  // namespace

TEST(StallReportSaysWhatAMissingRankDidLast) {
  EXPECT_EQ(Seen(ActivityOf(Activity::kFinished, 12, "allreduce 'grads'")),
            std::string("rank 1 finished allreduce 'grads' (call 12) 61 s ago") + kStacks);
  EXPECT_EQ(Seen(ActivityOf(Activity::kFailed, 12, "broadcast 'x'")),
            std::string("rank 1 left broadcast 'x' (call 12) with an error 61 s ago") + kStacks);
  EXPECT_EQ(Seen(ActivityOf(Activity::kIdle, 0, "")),
            std::string("rank 1 has not called a collective yet") + kStacks);
  EXPECT_EQ(
      Seen(ActivityOf(Activity::kInside, 2, "broadcast 'x' in process set 1 (ranks 1-2)")),
      std::string(
          "rank 1 is waiting in another collective: broadcast 'x' in process set 1 (ranks 1-2) "
          "(call 2), for 61 s") +
          kStacks);
  EXPECT_EQ(Seen(ActivityOf(Activity::kInside, 13, "allreduce 'grads'")),
            std::string("rank 1 has been in the same collective for 61 s") + kStacks);
  Activity on_gpu = ActivityOf(Activity::kFinished, 12, "allreduce 'grads'");
  on_gpu.on_gpu = 1;
  EXPECT_EQ(Seen(on_gpu),
            std::string("rank 1 handed allreduce 'grads' (call 12) to its GPU 61 s ago") + kStacks);
}

TEST(StallReportDoesNotGuess) {
  // Outside of a call, such as in a wait for the GPU.
  Stall outside;
  outside.now_ns = 100 * kSecond;
  MissingRank missing = Missing(Activity());
  EXPECT_EQ(LastSeen(missing, outside),
            std::string("rank 1 has no known last collective: it shares no memory with this "
                        "rank") +
                kStacks);
  missing.is_here = false;
  EXPECT_EQ(LastSeen(missing, outside),
            std::string("rank 1 has no known last collective: it is on another host") + kStacks);
  // There nothing is said to be the same or another.
  const MissingRank inside = Missing(ActivityOf(Activity::kInside, 13, "allreduce 'grads'"));
  EXPECT_EQ(LastSeen(inside, outside),
            std::string("rank 1 has been in allreduce 'grads' (call 13) for 61 s") + kStacks);
}

TEST(StallReportSaysWhatHasComeFromARankThatCannotBeSeen) {
  const MissingRank missing = Missing(Activity());
  Stall stall = Inside();
  EXPECT_EQ(LastSeen(missing, stall),
            std::string("rank 1 has not reached a collective yet") + kStacks);
  stall.before = ActivityOf(Activity::kInside, 12, "allreduce 'loss'");
  EXPECT_EQ(LastSeen(missing, stall),
            std::string("rank 1 was last seen in allreduce 'loss' (call 12) 61 s ago") + kStacks);
  stall.before.SetTitle("");
  EXPECT_EQ(LastSeen(missing, stall),
            std::string("rank 1 was last seen in call 12 61 s ago") + kStacks);
  stall.all_came = true;
  EXPECT_EQ(LastSeen(missing, stall), std::string("rank 1 has reached this collective") + kStacks);
}

TEST(StallReportSaysWhoHasEndedAndWhoPrintsNoStacks) {
  MissingRank missing = Missing(ActivityOf(Activity::kFinished, 12, "barrier 'b'"));
  missing.process = 0;
  EXPECT_EQ(Seen(missing),
            "rank 1 finished barrier 'b' (call 12) 61 s ago. Its stacks: py-spy dump, on host a");
  missing.has_ended = true;
  EXPECT_EQ(
      Seen(missing),
      "rank 1 finished barrier 'b' (call 12) 61 s ago. Its process has ended: see its output");
}

TEST(StallReportAndErrorTellTheSameStory) {
  Stall stall;
  stall.waiter = "rank 0 (host a)";
  stall.title = "allreduce 'grads' (1 tensor, 'w')";
  stall.missing = "rank 1 (host a)";
  stall.own = ActivityOf(Activity::kInside, 13, "allreduce 'grads'");
  stall.now_ns = 100 * kSecond;
  stall.waited_seconds = 61;
  stall.limit_seconds = 600;
  stall.ranks = {Missing(ActivityOf(Activity::kFinished, 12, "allreduce 'grads'"))};
  const std::string story =
      "rank 0 (host a) has waited 61 s in allreduce 'grads' (1 tensor, 'w') for rank 1 (host a).\n"
      "  rank 1 finished allreduce 'grads' (call 12) 61 s ago. Its Python stacks: kill -USR1 71 on "
      "host a\n"
      "This is call 13. ";
  const std::string advice =
      " Check that those processes are still running and what they are doing, and that no rank "
      "skips "
      "a collective, for example because it has fewer steps or a branch that depends on its rank.";
  EXPECT_EQ(StallReport(stall), "tfdist: stalled: " + story +
                                    "It fails after 600 s (TFDIST_STALL_CHECK_SHUTDOWN_TIME)." +
                                    advice);
  EXPECT_EQ(StallError(stall), story +
                                   "It has failed after 600 s (TFDIST_STALL_CHECK_SHUTDOWN_TIME; "
                                   "raise it if those ranks are only slow)." +
                                   advice);
}

TEST(StallOverIsOneLine) {
  EXPECT_EQ(tfdist::StallOver("rank 1 (host a), rank 2 (host b)", "allreduce 'grads'", 75.2),
            "tfdist: the stall is over: rank 1 (host a), rank 2 (host b) reached allreduce 'grads' "
            "after 75 s; the job continues.");
}

TEST(StallReportTellsOfSixteenRanksAndCountsTheOthers) {
  Stall stall;
  for (int rank = 1; rank <= 19; ++rank) {
    stall.ranks.push_back(Missing(ActivityOf(Activity::kIdle, 0, "")));
    stall.ranks.back().rank = rank;
  }
  const std::string text = StallReport(stall);
  EXPECT_CONTAINS(text, "\n  rank 16 has not called");
  EXPECT_CONTAINS(text, "\n  and 3 more ranks\n");
  EXPECT(text.find("rank 17") == std::string::npos);
  EXPECT(text.find("This is call") == std::string::npos);
}
