#include "core/watch/trace_event.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/value/dtype.h"
#include "core/watch/json_text.h"

namespace tfdist {
namespace {

std::string Microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof(text), "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

std::string Pair(const char* key, const std::string& value) { return JsonText(key) + ":" + value; }

std::string Pair(const char* key, int64_t value) { return Pair(key, std::to_string(value)); }

void AppendEvent(const std::string& event, std::string* text) {
  if (!text->empty()) *text += ",\n";
  *text += "{" + event + "}";
}

int ThreadOf(const TraceRecord& record) {
  return 2 * record.process_set + (record.kind == TraceRecord::Kind::kDevice ? 1 : 0);
}

// "ph", "pid", "tid" and "ts" of an event.
std::string Place(const char* kind, int pid, int thread, int64_t ns) {
  return Pair("ph", JsonText(kind)) + "," + Pair("pid", pid) + "," + Pair("tid", thread) + "," +
         Pair("ts", Microseconds(ns));
}

// What `room` holds: text that may have been cut off within a character.
std::string Held(const char (&room)[TraceRecord::kNameBytes]) {
  std::string name = room;
  if (name.size() + 1 < sizeof(room)) return name;
  size_t whole = 0;
  for (size_t i = 0; i < name.size();) {
    i += std::max<size_t>(1, CharacterBytes(name, i));
    if (i + 3 <= name.size()) whole = i;  // an ellipsis has three bytes
  }
  return name.substr(0, whole) + "\xe2\x80\xa6";
}

std::string Tensors(const TraceRecord& record) {
  std::string names;
  for (int i = 0; i < std::min(record.tensors, TraceRecord::kNames); ++i) {
    names += (i == 0 ? "" : ",") + JsonText(Held(record.tensor_names[i]));
  }
  return Pair("tensors", "[" + names + "]") + "," + Pair("tensor_count", record.tensors) + "," +
         Pair("bytes", record.bytes) + "," +
         Pair("dtype", JsonText(record.mixed ? "mixed" : NameOf(record.dtype)));
}

std::string Arguments(const TraceRecord& record) {
  std::string arguments = Pair("call", record.call);
  if (record.tensors > 0) arguments += "," + Tensors(record);
  if (record.last_rank >= 0) arguments += "," + Pair("last_rank", record.last_rank);
  if (record.kind == TraceRecord::Kind::kDevice) {
    arguments += "," + Pair("waited_us", Microseconds(record.waited_ns));
  }
  if (record.failed) arguments += "," + Pair("failed", std::string("true"));
  return Pair("args", "{" + arguments + "}");
}

std::string Title(const TraceRecord& record) {
  if (record.kind == TraceRecord::Kind::kBucket) return "bucket " + std::to_string(record.bucket);
  const std::string name = Held(record.name);
  return std::string(NameOf(record.operation)) + (name.empty() ? "" : " " + name);
}

// Each phase with all of its length, in the order in which they began: where a bucket goes through
// in many chunks, hundreds of intervals are drawn as one. What does not fit behind its own
// beginning is moved on, never beyond the end: all phases from some beginning on are disjoint.
void AppendPhases(const TraceSource& source, const TraceRecord& record, std::string* text) {
  int order[kPhases];
  std::iota(order, order + kPhases, 0);
  std::sort(order, order + kPhases,
            [&](int a, int b) { return record.phases[a].first_ns < record.phases[b].first_ns; });
  int64_t free_ns = record.begin_ns;
  for (int number : order) {
    const PhaseTime& phase = record.phases[number];
    if (phase.intervals == 0) continue;
    const int64_t begin_ns = std::max(phase.first_ns, free_ns);
    free_ns = begin_ns + phase.total_ns;
    std::string arguments = Pair("call", record.call) + "," + Pair("intervals", phase.intervals);
    const bool waits = number == static_cast<int>(Phase::kWait);
    if (waits && record.last_rank >= 0) arguments += "," + Pair("last_rank", record.last_rank);
    AppendEvent(Pair("name", JsonText(NameOf(static_cast<Phase>(number)))) + "," +
                    Pair("cat", JsonText("phase")) + "," +
                    Place("X", source.rank, ThreadOf(record), begin_ns) + "," +
                    Pair("dur", Microseconds(phase.total_ns)) + "," +
                    Pair("args", "{" + arguments + "}"),
                text);
  }
}

// Several are under way at a time, so they are no slices of one thread.
void AppendDevice(const TraceSource& source, const TraceRecord& record, std::string* text) {
  const std::string head =
      Pair("name", JsonText(Title(record))) + "," + Pair("cat", JsonText("device")) + "," +
      Pair("id2", "{" + Pair("local", JsonText(std::to_string(record.call))) + "}") + ",";
  const int thread = ThreadOf(record);
  AppendEvent(head + Place("b", source.rank, thread, record.begin_ns) + "," + Arguments(record),
              text);
  AppendEvent(head + Place("e", source.rank, thread, record.end_ns), text);
}

void AppendMetadata(const char* name, int pid, int thread, const std::string& arguments,
                    std::string* text) {
  AppendEvent(Pair("name", JsonText(name)) + "," + Pair("ph", JsonText("M")) + "," +
                  Pair("pid", pid) + "," + Pair("tid", thread) + "," +
                  Pair("args", "{" + arguments + "}"),
              text);
}

void AppendInstant(const std::string& head, int pid, int thread, int64_t ns,
                   const std::string& arguments, std::string* text) {
  AppendEvent(head + "," + Place("i", pid, thread, ns) + "," + Pair("s", JsonText("p")) + "," +
                  Pair("args", "{" + arguments + "}"),
              text);
}

std::string Remark(const char* name) {
  return Pair("name", JsonText(name)) + "," + Pair("cat", JsonText("remark"));
}

}  // namespace

void AppendSource(const TraceSource& source, std::string* text) {
  const std::string name = "rank " + std::to_string(source.rank) + " (host " + source.host + ")";
  AppendMetadata("process_name", source.rank, 0, Pair("name", JsonText(name)), text);
  AppendMetadata("process_sort_index", source.rank, 0, Pair("sort_index", source.rank), text);
  AppendMetadata("tfdist", source.rank, 0,
                 Pair("rank", source.rank) + "," + Pair("size", source.size) + "," +
                     Pair("host", JsonText(source.host)) + "," +
                     Pair("to_unix_ns", source.clock.to_unix_ns) + "," +
                     Pair("round_trip_ns", source.clock.round_trip_ns),
                 text);
}

void AppendThreads(int rank, int process_set, std::string* text) {
  const std::string ranks =
      process_set == 0 ? "all ranks" : "process set " + std::to_string(process_set);
  AppendMetadata("thread_name", rank, 2 * process_set,
                 Pair("name", JsonText("collectives of " + ranks)), text);
  AppendMetadata("thread_name", rank, 2 * process_set + 1,
                 Pair("name", JsonText("on the GPU, of " + ranks)), text);
}

void AppendRecord(const TraceSource& source, const TraceRecord& record, std::string* text) {
  if (record.kind == TraceRecord::Kind::kDevice) return AppendDevice(source, record, text);
  const bool is_call = record.kind == TraceRecord::Kind::kCall;
  AppendEvent(Pair("name", JsonText(Title(record))) + "," +
                  Pair("cat", JsonText(is_call ? "call" : "bucket")) + "," +
                  Place("X", source.rank, ThreadOf(record), record.begin_ns) + "," +
                  Pair("dur", Microseconds(record.end_ns - record.begin_ns)) + "," +
                  Arguments(record),
              text);
  AppendPhases(source, record, text);
  if (is_call && source.mark_cycles && record.met_ns != 0) {
    AppendInstant(Pair("name", JsonText("cycle")) + "," + Pair("cat", JsonText("cycle")),
                  source.rank, ThreadOf(record), record.met_ns, Pair("call", record.call), text);
  }
}

void AppendRenumbering(int pid, int rank, int size, int64_t now_ns, std::string* text) {
  AppendInstant(Remark("ranks counted anew"), pid, 0, now_ns,
                Pair("rank", rank) + "," + Pair("size", size), text);
}

void AppendLoss(int pid, int64_t records, int64_t now_ns, std::string* text) {
  AppendInstant(Remark("events lost"), pid, 0, now_ns, Pair("records", records), text);
}

}  // namespace tfdist
