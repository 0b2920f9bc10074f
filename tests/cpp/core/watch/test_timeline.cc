// What the engines of ranks record of their calls: names, bytes, phases that nest, whom they waited
// for; nothing of it lost without a word, whatever ends.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/watch/timeline.h"
#include "expect.h"
#include "gate.h"
#include "gpu_machine.h"
#include "rank_team.h"
#include "result.h"
#include "trace_text.h"

using tfdist::AllreduceOptions;
using tfdist::DType;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;
using tfdist::Timeline;
using tfdist::TraceRecord;

namespace {

void Sum(const RankContext& self, const std::string& name, const std::vector<int64_t>& counts,
         tfdist::Compression compression = tfdist::Compression::kNone) {
  std::vector<Elements> tensors;
  std::vector<TensorView> views;
  for (int64_t count : counts) tensors.emplace_back(DType::kFloat32, count);
  for (Elements& tensor : tensors) {
    for (int64_t i = 0; i < tensor.view().count(); ++i) tensor.Set(i, self.rank + 1);
    views.push_back(tensor.view());
  }
  AllreduceOptions options = OptionsFor(name, counts.size());
  options.compression = compression;
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
}

void Record(const RankContext& self, const TraceFolder& folder, bool mark_cycles = false) {
  EXPECT_EQ(self.engine->StartTimeline(folder.File(self.rank), mark_cycles).message(), "");
}

std::vector<TraceLine> Recorded(const RankContext& self, const TraceFolder& folder) {
  self.engine->timeline().Stop();
  return ReadTrace(folder.File(self.rank));
}

// Every one of `inner` lies within one of `outer` of the same call, and they do not overlap.
void ExpectNested(const std::vector<TraceLine>& inner, const std::vector<TraceLine>& outer) {
  for (size_t i = 0; i < inner.size(); ++i) {
    bool within = false;
    for (const TraceLine& line : outer) {
      within = within || (line.Number("call") == inner[i].Number("call") &&
                          line.begin_ns <= inner[i].begin_ns && inner[i].end_ns <= line.end_ns);
    }
    EXPECT(within);
    for (size_t j = 0; j < i; ++j) {
      EXPECT(inner[i].end_ns <= inner[j].begin_ns || inner[j].end_ns <= inner[i].begin_ns);
    }
  }
}

void ExpectWithinOrApart(const std::vector<TraceLine>& inner, const std::vector<TraceLine>& outer) {
  for (const TraceLine& in : inner) {
    for (const TraceLine& out : outer) {
      const bool apart = in.end_ns <= out.begin_ns || out.end_ns <= in.begin_ns;
      EXPECT(apart || (out.begin_ns <= in.begin_ns && in.end_ns <= out.end_ns));
    }
  }
}

void ExpectCall(const TraceLine& line, const std::string& name, int64_t tensors, int64_t bytes) {
  EXPECT_EQ(line.name, name);
  EXPECT_EQ(line.Number("tensor_count"), tensors);
  EXPECT_EQ(line.Number("bytes"), bytes);
  EXPECT(!line.Has("failed"));
}

std::vector<std::string> NamesOf(const std::vector<TraceLine>& lines, int64_t call) {
  std::vector<std::string> names;
  for (const TraceLine& line : lines) {
    if (line.Number("call") == call) names.push_back(line.name);
  }
  return names;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  for (const std::string& one : names) {
    if (one == name) return true;
  }
  return false;
}

TraceRecord RecordNamed(const std::string& name) {
  TraceRecord record;
  std::strncpy(record.name, name.c_str(), sizeof(record.name) - 1);
  record.begin_ns = 1000;
  record.end_ns = 2000;
  return record;
}

}  // namespace

TEST(TimelineHasEachCallWithItsBucketsAndPhases) {
  for (int size : kRankCounts) {
    const TraceFolder folder;
    RunRanks(size, [&folder](const RankContext& self) {
      Record(self, folder);
      Sum(self, "small", {3, 4});
      Sum(self, "large", {20000, 5, 7, 30000}, tfdist::Compression::kFp16);
      std::vector<float> values(100, static_cast<float>(self.rank));
      const tfdist::BroadcastOptions weights = BroadcastOptionsFor("weights", 1, 0);
      EXPECT_EQ(self.engine->Broadcast(weights, {ViewOf(&values)}).message(), "");
      EXPECT_EQ(self.engine->Barrier("end").message(), "");
      const std::vector<TraceLine> lines = Recorded(self, folder);
      const std::vector<TraceLine> calls = OfCategory(lines, "call");
      const std::vector<TraceLine> buckets = OfCategory(lines, "bucket");
      const std::vector<TraceLine> phases = OfCategory(lines, "phase");
      EXPECT_EQ(calls.size(), 4u);
      if (calls.size() != 4) return;
      ExpectCall(calls[0], "allreduce small", 2, 28);
      ExpectCall(calls[1], "allreduce large", 4, 2 * 50012);
      ExpectCall(calls[2], "broadcast weights", 1, 400);
      EXPECT_EQ(calls[3].name, "barrier end");
      EXPECT(calls[0].Has("\"tensors\":[\"tensor0\",\"tensor1\"]"));
      EXPECT(calls[1].Has("\"tensors\":[\"tensor0\",\"tensor1\",\"tensor2\"]"));
      EXPECT(calls[0].Has("\"dtype\":\"float32\"") && calls[1].Has("\"dtype\":\"float16\""));
      EXPECT_EQ(NamesOf(buckets, calls[1].Number("call")).size(), 1u);
      const std::vector<std::string> of_large = NamesOf(phases, calls[1].Number("call"));
      for (const char* name : {"wait", "pack", "reduce", "unpack"}) {
        EXPECT(Contains(of_large, name));
      }
      ExpectNested(calls, calls);
      ExpectNested(buckets, calls);
      ExpectNested(phases, calls);
      ExpectWithinOrApart(phases, buckets);
      EXPECT(OfCategory(lines, "cycle").empty());
    });
  }
}

TEST(TimelineHasTheTensorsOfAnAllgatherAndTheRowsOfAll) {
  const TraceFolder folder;
  RunRanks(3, [&folder](const RankContext& self) {
    Record(self, folder);
    std::vector<float> first(self.rank + 1), second(6);
    Results results({DType::kFloat32, DType::kFloat32});
    std::vector<int64_t> rows;
    EXPECT_EQ(self.engine
                  ->Allgather(GatherOptionsFor("gather", 2), {ViewOf(&first), ViewOf(&second)},
                              results.Allocator(), &rows)
                  .message(),
              "");
    const std::vector<TraceLine> lines = Recorded(self, folder);
    const std::vector<TraceLine> buckets = OfCategory(lines, "bucket");
    EXPECT_EQ(buckets.size(), 2u);
    EXPECT_EQ(OfCategory(lines, "call").at(0).Number("bytes"), 4 * (self.rank + 1) + 24);
    EXPECT(buckets.at(1).Has("\"tensors\":[\"tensor1\"]"));
    ExpectNested(buckets, OfCategory(lines, "call"));
    ExpectWithinOrApart(OfCategory(lines, "phase"), buckets);
  });
}

// The last rank comes when all others are known to wait for it, for longer than a busy processor
// holds up any. They come from the highest on, since of those that wait the lowest alone reports.
TEST(TimelineNamesTheRankThatCameLast) {
  for (int size : {2, 3, 4}) {
    for (const Fabric& fabric : FabricsOf(size)) {
      const TraceFolder folder;
      std::vector<Gate> doors(static_cast<size_t>(size));  // by rank
      doors[size - 2].Open();
      std::atomic<int> next{size - 2};  // that is to report
      tfdist::EngineConfig config = TestConfig();
      config.stall_warning_seconds = 0.2;
      config.on_stall = [&](const std::string& report) {
        if (report.find(" s in allreduce 'late'") == std::string::npos) return;
        int rank = next;
        const std::string begin = "tfdist: stalled: rank " + std::to_string(rank) + " (";
        if (report.compare(0, begin.size(), begin) != 0) return;  // one that has reported before
        if (next.compare_exchange_strong(rank, rank - 1)) {
          doors[rank > 0 ? rank - 1 : size - 1].Open();
        }
      };
      RunRanksOn(fabric, config, [&](const RankContext& self) {
        Record(self, folder);
        EXPECT_EQ(self.engine->Barrier("meet").message(), "");
        doors[self.rank].Pass();
        Sum(self, "late", {5000});
        const std::vector<TraceLine> phases = OfCategory(Recorded(self, folder), "phase");
        const std::vector<TraceLine> calls = OfCategory(ReadTrace(folder.File(self.rank)), "call");
        EXPECT_EQ(calls.at(1).name, "allreduce late");
        if (self.rank == size - 1) return;
        EXPECT_EQ(calls.at(1).Number("last_rank"), int64_t{size - 1});
        for (const TraceLine& phase : phases) {
          if (phase.name != "wait" || phase.begin_ns != calls.at(1).begin_ns) continue;
          EXPECT_EQ(phase.Number("last_rank"), int64_t{size - 1});
          EXPECT(phase.end_ns - phase.begin_ns >= 200000000);  // the warning came after this long
        }
      });
    }
  }
}

TEST(TimelineMarksWhereAllHaveCome) {
  const TraceFolder folder;
  RunRanks(2, [&folder](const RankContext& self) {
    Record(self, folder, /*mark_cycles=*/true);
    Sum(self, "a", {1});
    Sum(self, "b", {1});
    const std::vector<TraceLine> lines = Recorded(self, folder);
    const std::vector<TraceLine> marks = OfCategory(lines, "cycle");
    EXPECT_EQ(marks.size(), 2u);
    ExpectNested(marks, OfCategory(lines, "call"));
  });
}

TEST(TimelineSaysWhoItIsAndHowItsClockStands) {
  const TraceFolder folder;
  RunRanks(3, [&folder](const RankContext& self) {
    Record(self, folder);
    std::string source;
    for (const TraceLine& line : Recorded(self, folder)) {
      if (line.name == "tfdist") source = line.text;
    }
    EXPECT_CONTAINS(source, "\"rank\":" + std::to_string(self.rank) + ",\"size\":3");
    EXPECT_CONTAINS(source, "\"host\":\"localhost\"");
    EXPECT_CONTAINS(source, "\"to_unix_ns\":");
  });
}

TEST(TimelineIsOneFileForProcessSetsToo) {
  const TraceFolder folder;
  RunRanks(3, [&folder](const RankContext& self) {
    Record(self, folder);
    std::shared_ptr<tfdist::Engine> pair;
    EXPECT_EQ(self.engine->AddProcessSet({0, 2}, 1, &pair).message(), "");
    if (pair != nullptr) Sum({self.rank / 2, 2, pair.get(), nullptr}, "pair", {9});
    Sum(self, "all", {9});
    int pairs = 0;
    for (const TraceLine& call : OfCategory(Recorded(self, folder), "call")) {
      EXPECT_EQ(call.Number("pid"), int64_t{self.rank});
      EXPECT_EQ(call.Number("tid"), int64_t{call.name == "allreduce pair" ? 2 : 0});
      pairs += call.name == "allreduce pair" ? 1 : 0;
    }
    EXPECT_EQ(pairs, self.rank == 1 ? 0 : 1);
  });
}

// As of a host that was started an hour before: by its clock rank 0 comes last, in a process set
// too.
TEST(TimelineOfAProcessSetGoesByTheClockOfAll) {
  const TraceFolder folder;
  Gate waits;
  tfdist::EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.2;
  config.on_stall = [&waits](const std::string& report) {
    if (report.find("rank 0 ") != std::string::npos &&
        report.find("allreduce 'pair'") != std::string::npos) {
      waits.Open();
    }
  };
  RunRanksOn(FabricsOf(3)[0], config, [&](const RankContext& self) {
    Timeline& timeline = self.engine->timeline();
    EXPECT(timeline.Open(folder.File(self.rank)).ok());
    tfdist::TraceSource source{self.rank, self.size, "localhost", {}, false};
    source.clock.to_unix_ns = self.rank == 0 ? 3'600'000'000'000 : 0;
    timeline.Start(source);
    std::shared_ptr<tfdist::Engine> pair;
    EXPECT_EQ(self.engine->AddProcessSet({0, 2}, 1, &pair).message(), "");
    if (self.rank == 2) waits.Pass();
    if (pair != nullptr) Sum({self.rank / 2, 2, pair.get(), nullptr}, "pair", {9});
    for (const TraceLine& call : OfCategory(Recorded(self, folder), "call")) {
      // Rank 2 may have waited too, for the last bytes of rank 0.
      if (call.name != "allreduce pair" || !call.Has("last_rank")) continue;
      EXPECT_EQ(call.Number("last_rank"), 0);
      EXPECT(self.rank != 0);
    }
  });
}

TEST(TimelineOfARankThatHasJoinedHasWhatItTakesPartIn) {
  const TraceFolder folder;
  RunRanks(2, [&folder](const RankContext& self) {
    Record(self, folder);
    if (self.rank == 0) Sum(self, "alone", {40, 2});
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
    const std::vector<TraceLine> lines = Recorded(self, folder);
    const std::vector<TraceLine> calls = OfCategory(lines, "call");
    EXPECT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls.at(0).name, self.rank == 0 ? "allreduce alone" : "join");
    EXPECT_EQ(calls.at(1).name, "join");
    const std::vector<TraceLine> buckets = OfCategory(lines, "bucket");
    EXPECT_EQ(buckets.size(), 1u);
    EXPECT_EQ(buckets.at(0).Number("bytes"), 168);
    ExpectNested(buckets, calls);
  });
}

TEST(TimelineHasCallsThatFailed) {
  const TraceFolder folder;
  RunRanks(2, [&folder](const RankContext& self) {
    Record(self, folder);
    EXPECT(!self.engine->Barrier(self.rank == 0 ? "here" : "there").ok());
    ExpectInStep(self);
    const std::vector<TraceLine> calls = OfCategory(Recorded(self, folder), "call");
    EXPECT_EQ(calls.size(), 2u);
    EXPECT(calls.at(0).Has("\"failed\":true"));
    EXPECT(!calls.at(1).Has("failed"));
  });
}

TEST(TimelineOfRanksThatLoseOneHasTheCallInWhichTheyDid) {
  const TraceFolder folder;
  Gate left[3];  // the first call, which rank 1 is not to spoil
  RunRanks(3, [&](const RankContext& self) {
    Record(self, folder);
    Sum(self, "before", {5});
    left[self.rank].Open();
    if (self.rank == 1) {
      left[0].Pass();
      left[2].Pass();
      self.kill();
    } else {
      EXPECT_EQ(CodeOf(self.engine->Barrier("after")), static_cast<int>(StatusCode::kUnavailable));
    }
    const std::vector<TraceLine> calls = OfCategory(Recorded(self, folder), "call");
    EXPECT_EQ(calls.size(), self.rank == 1 ? 1u : 2u);
    if (self.rank != 1) EXPECT(calls.at(1).Has("\"failed\":true"));
  });
}

TEST(TimelineThatOneRankCannotWriteIsAnErrorOfAll) {
  const TraceFolder folder;
  ExpectSameError(3, StatusCode::kFailedPrecondition, "rank 1: the timeline '/proc",
                  [&folder](const RankContext& self) {
                    const std::string file =
                        self.rank == 1 ? "/proc/no/such/run.json" : folder.File(self.rank);
                    const Status status = self.engine->StartTimeline(file, false);
                    EXPECT(!self.engine->timeline().recording());
                    if (self.rank != 1) EXPECT_EQ(ReadText(file), "[\n]\n");
                    return status;
                  });
}

TEST(TimelineIsStartedOnceAndMayBeStartedAgain) {
  const TraceFolder folder;
  RunRanks(2, [&folder](const RankContext& self) {
    for (int round = 0; round < 3; ++round) {
      Record(self, folder);
      const Status again = self.engine->StartTimeline(folder.File(self.rank), false);
      EXPECT_EQ(CodeOf(again), static_cast<int>(StatusCode::kInvalidArgument));
      EXPECT_CONTAINS(again.message(), "Call stop_timeline() first");
      Sum(self, "round", {5});
      const std::vector<TraceLine> calls = OfCategory(Recorded(self, folder), "call");
      EXPECT_EQ(calls.size(), 2u);  // the refused start, too
      EXPECT_EQ(calls.at(1).name, "allreduce round");
      Sum(self, "not recorded", {5});
    }
  });
}

TEST(TimelineThatIsStoppedBeforeItStartsDoesNot) {
  const TraceFolder folder;
  Timeline timeline;
  EXPECT_EQ(timeline.Open(folder.File(0)).message(), "");
  timeline.Stop();
  timeline.Start({});
  EXPECT(!timeline.recording());
  EXPECT_EQ(ReadText(folder.File(0)), "[\n]\n");
}

TEST(TimelineWithoutRecordingWritesNothing) {
  RunRanks(2, [](const RankContext& self) {
    Sum(self, "a", {5});
    EXPECT(!self.engine->timeline().recording());
    self.engine->timeline().Stop();
  });
}

TEST(TimelineOfAGpuHasWhatWasLeftToIt) {
  const TraceFolder folder;
  RunOnMachine(2, [&folder](const RankContext& self) {
    Record(self, folder);
    ExpectSum(self, self.engine, All(self.size));
    self.engine->Finish();
    const std::vector<TraceLine> device = OfCategory(Recorded(self, folder), "device");
    EXPECT_EQ(device.size(), 2u);
    EXPECT(device.at(0).Has("\"ph\":\"b\"") && device.at(1).Has("\"ph\":\"e\""));
    // Nobody says that it went on meanwhile.
    const int64_t waited_us = device.at(0).Number("waited_us");
    EXPECT_EQ(waited_us, (device.at(1).begin_ns - device.at(0).begin_ns) / 1000);
  });
}

TEST(TimelineLosesNothingWithoutAWord) {
  const TraceFolder folder;
  constexpr int kThreads = 4;
  constexpr int kRecords = 5000;
  Timeline timeline;
  EXPECT_EQ(timeline.Open(folder.File(0)).message(), "");
  timeline.Add(RecordNamed("too early"));
  timeline.Start({});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&timeline] {
      for (int i = 0; i < kRecords; ++i) timeline.Add(RecordNamed("x"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  timeline.Stop();
  timeline.Add(RecordNamed("too late"));
  const std::vector<TraceLine> lines = ReadTrace(folder.File(0));
  int64_t recorded = 0, lost = 0;
  for (const TraceLine& line : lines) {
    if (line.category == "call") ++recorded;
    if (line.name == "events lost") lost += line.Number("records");
    EXPECT(!line.Has("too "));
  }
  EXPECT(recorded >= 4096);
  EXPECT_EQ(recorded + lost, int64_t{kThreads} * kRecords);
}

TEST(TimelineCutsLongNamesBetweenCharacters) {
  const TraceFolder folder;
  Timeline timeline;
  EXPECT_EQ(timeline.Open(folder.File(0)).message(), "");
  timeline.Start({});
  std::string euros;
  for (int i = 0; i < 100; ++i) euros += "\xe2\x82\xac";
  for (int shift = 0; shift < 3; ++shift)
    timeline.Add(RecordNamed(std::string(shift, 'a') + euros));
  timeline.Add(RecordNamed("says \"so\"\\ \n"));
  timeline.Renumber(1, 2);
  timeline.Stop();
  const std::vector<TraceLine> lines = ReadTrace(folder.File(0));
  const std::vector<TraceLine> calls = OfCategory(lines, "call");
  for (int shift = 0; shift < 3; ++shift) {
    const std::string& name = calls.at(shift).name;
    EXPECT_EQ(name.find('?'), std::string::npos);
    EXPECT_EQ(name.substr(name.size() - 6), "\xe2\x82\xac\xe2\x80\xa6");
  }
  EXPECT(calls.at(3).Has("says \\\"so\\\"\\\\ \\u000a"));
  EXPECT(lines.back().Has("\"ranks counted anew\"") && lines.back().Number("rank") == 1);
}
