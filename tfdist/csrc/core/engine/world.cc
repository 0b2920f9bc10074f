#include "core/engine/world.h"

#include <map>
#include <mutex>
#include <utility>

namespace tfdist {
namespace {

struct ProcessSet {
  std::vector<int> ranks;
  std::shared_ptr<Engine> engine;  // null where this rank is not in it
};

struct Slot {
  std::mutex changing;  // one thread adds or removes at a time: the ranks do so in one order
  std::mutex mutex;     // guards all below
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Engine>
      ended;  // before the last loss: late messages may still come into its memory
  bool forked = false;
  int next_process_set = 1;
  std::map<int, ProcessSet> process_sets;
};

// Never destroyed: a thread of the framework may still ask while the process exits.
Slot& TheSlot() {
  static Slot* const slot = new Slot;
  return *slot;
}

Status ForkedError(const Topology& topology) {
  return Status(StatusCode::kInvalidArgument,
                "this process was forked from " + RankListWithHosts(topology, {topology.rank}) +
                    " and is not a rank itself: collectives belong to its parent, and a second "
                    "process would corrupt their results. Call them in the parent, or start the "
                    "process with multiprocessing's spawn method and pass it what it needs.");
}

}  // namespace

// A lock that another thread held in the moment of a fork would never be free in the child.
void World::BeforeFork() { TheSlot().mutex.lock(); }

void World::AfterForkInParent() { TheSlot().mutex.unlock(); }

void World::AfterForkInChild() {
  Slot& slot = TheSlot();
  slot.forked = slot.forked || slot.engine != nullptr;
  slot.mutex.unlock();
}

bool World::IsForked() {
  std::lock_guard<std::mutex> lock(TheSlot().mutex);
  return TheSlot().forked;
}

std::shared_ptr<Engine> World::Get() {
  std::lock_guard<std::mutex> lock(TheSlot().mutex);
  return TheSlot().engine;
}

Status World::Find(int process_set, std::shared_ptr<Engine>* engine) {
  Slot& slot = TheSlot();
  std::lock_guard<std::mutex> lock(slot.mutex);
  if (slot.engine == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "a collective ran before tfdist.init() or after tfdist.shutdown(). Call "
                  "tfdist.init() once, at the start of the script.");
  }
  const Topology& topology = slot.engine->communicator().topology();
  if (slot.forked && topology.size > 1) return ForkedError(topology);
  if (process_set == 0) {
    *engine = slot.engine;
    return Status::Ok();
  }
  const auto found = slot.process_sets.find(process_set);
  if (found == slot.process_sets.end()) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no process set " + std::to_string(process_set) +
                      ", or it was removed. Add it on every rank before using it.");
  }
  *engine = found->second.engine;
  if (*engine != nullptr) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                RankListWithHosts(topology, {topology.rank}) + " ran a collective in process set " +
                    std::to_string(process_set) + " (" + RankList(found->second.ranks) +
                    "), to which it does not belong. Run it only if process_set.included().");
}

Status World::AddProcessSet(const std::vector<int>& ranks, int* process_set) {
  Slot& slot = TheSlot();
  std::lock_guard<std::mutex> changing(slot.changing);
  std::shared_ptr<Engine> whole;
  TFDIST_RETURN_IF_ERROR(Find(0, &whole));
  {
    std::lock_guard<std::mutex> lock(slot.mutex);
    for (const auto& entry : slot.process_sets) {
      if (entry.second.ranks != ranks) continue;
      return Status(StatusCode::kInvalidArgument,
                    "a process set of " + RankList(ranks) + " already exists, as number " +
                        std::to_string(entry.first) + ". Use that one, or remove it first.");
    }
    *process_set = slot.next_process_set;
  }
  ProcessSet added{ranks, nullptr};
  TFDIST_RETURN_IF_ERROR(whole->AddProcessSet(ranks, *process_set, &added.engine));
  std::lock_guard<std::mutex> lock(slot.mutex);
  if (slot.engine != whole) {
    return Status(StatusCode::kFailedPrecondition,
                  "tfdist was shut down or restarted while a process set of " + RankList(ranks) +
                      " was added. Add process sets after init() has returned.");
  }
  ++slot.next_process_set;
  slot.process_sets[*process_set] = std::move(added);
  return Status::Ok();
}

Status World::RemoveProcessSet(int process_set) {
  Slot& slot = TheSlot();
  std::lock_guard<std::mutex> changing(slot.changing);
  std::shared_ptr<Engine> whole;
  TFDIST_RETURN_IF_ERROR(Find(0, &whole));
  {
    std::lock_guard<std::mutex> lock(slot.mutex);
    if (slot.process_sets.count(process_set) == 0) {
      return Status(StatusCode::kInvalidArgument,
                    "there is no process set " + std::to_string(process_set) +
                        " to remove. Number 0, all ranks, cannot be removed.");
    }
  }
  TFDIST_RETURN_IF_ERROR(whole->RemoveProcessSet(process_set));
  ProcessSet removed;  // let go outside the lock
  {
    std::lock_guard<std::mutex> lock(slot.mutex);
    if (slot.engine != whole) return Status::Ok();
    std::swap(removed, slot.process_sets[process_set]);
    slot.process_sets.erase(process_set);
  }
  if (removed.engine != nullptr) removed.engine->Finish();
  return Status::Ok();
}

void World::FinishProcessSets() {
  std::vector<std::shared_ptr<Engine>> engines;
  {
    std::lock_guard<std::mutex> lock(TheSlot().mutex);
    for (const auto& entry : TheSlot().process_sets) engines.push_back(entry.second.engine);
  }
  for (const auto& engine : engines) {
    if (engine != nullptr) engine->Finish();
  }
}

Status World::Part() {
  Slot& slot = TheSlot();
  std::lock_guard<std::mutex> changing(slot.changing);
  std::shared_ptr<Engine> whole;
  TFDIST_RETURN_IF_ERROR(Find(0, &whole));
  {
    std::lock_guard<std::mutex> lock(slot.mutex);
    if (!slot.process_sets.empty()) {
      return Status(StatusCode::kFailedPrecondition,
                    "a job with process sets cannot continue after losing a rank. Start it "
                    "without --elastic, or train without process sets.");
    }
  }
  whole->Part();
  return Status::Ok();
}

Status World::Meet(const Membership& membership) {
  Slot& slot = TheSlot();
  std::lock_guard<std::mutex> changing(slot.changing);
  std::shared_ptr<Engine> before;
  TFDIST_RETURN_IF_ERROR(Find(0, &before));
  std::shared_ptr<Engine> next;
  TFDIST_RETURN_IF_ERROR(before->Meet(membership, &next));
  std::shared_ptr<Engine> forgotten;  // let go outside the lock
  std::lock_guard<std::mutex> lock(slot.mutex);
  forgotten = std::move(slot.ended);
  slot.ended = std::move(before);
  slot.engine = std::move(next);
  return Status::Ok();
}

std::shared_ptr<Engine> World::Set(std::shared_ptr<Engine> engine) {
  std::map<int, ProcessSet> dropped;  // let go outside the lock
  std::lock_guard<std::mutex> lock(TheSlot().mutex);
  std::swap(TheSlot().process_sets, dropped);
  TheSlot().next_process_set = 1;
  std::swap(TheSlot().engine, engine);
  return engine;
}

}  // namespace tfdist
