#include "core/agree/mismatch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/place/topology.h"

namespace tfdist {
namespace {

constexpr size_t kMaxValues = 8;  // distinct values that a message spells out

constexpr char kAdvice[] =
    " Every rank must run the same collectives in the same order with the same names, dtypes, "
    "shapes, operation and root. Check for rank-dependent branches.";

constexpr char kStepsAdvice[] =
    " Give every rank the same number of steps, or let those that come to their end first call "
    "join.";

// What one rank submitted.
struct Submission {
  int world_rank;
  std::vector<Field> fields;
};

using Descriptions = std::vector<Submission>;

struct Group {
  std::string value;
  std::vector<int> ranks;
};

std::string ValueAt(const std::vector<Field>& fields, size_t index) {
  return index < fields.size() ? fields[index].value : "absent";
}

// The ranks by value, in the order of the first rank that has it.
template <typename ValueOf>
std::vector<Group> GroupRanks(const Descriptions& descriptions, const ValueOf& value_of) {
  std::vector<Group> groups;
  for (const Submission& submission : descriptions) {
    const std::string value = value_of(submission.fields);
    auto group = std::find_if(groups.begin(), groups.end(), [&value](const Group& candidate) {
      return candidate.value == value;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
    group->ranks.push_back(submission.world_rank);
  }
  return groups;
}

std::vector<Group> GroupByField(const Descriptions& descriptions, size_t index) {
  return GroupRanks(descriptions, [index](const auto& fields) { return ValueAt(fields, index); });
}

constexpr char kThreadAdvice[] =
    " Threads of a process do not call in an order that the ranks agree on: call all collectives "
    "from one thread, or give each thread its own process set. A calling thread must have the "
    "same name on every rank.";

// "called allreduce 'x' in thread 'y'"
std::string Deed(const std::vector<Field>& fields) {
  const std::string operation = ValueAt(fields, kOperation);
  if (operation == NameOf(Operation::kShutdown)) return "has finished (called shutdown)";
  const std::string name = ValueAt(fields, kName);
  const std::string thread = ValueAt(fields, kThread);
  return "called " + operation + (name.empty() ? "" : " '" + name + "'") +
         (thread.empty() ? "" : " in thread '" + thread + "'");
}

template <typename Format>
std::string Join(const std::vector<Group>& groups, const Format& format) {
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kMaxValues; ++i) {
    if (i > 0) text += ", ";
    text += format(groups[i]);
  }
  if (groups.size() > kMaxValues) {
    text += " and " + std::to_string(groups.size() - kMaxValues) + " more";
  }
  return text;
}

std::string Plural(std::string deed, const Group& group) {
  if (group.ranks.size() > 1 && deed.compare(0, 4, "has ") == 0) deed.replace(0, 3, "have");
  return deed;
}

// Wrong arguments, on all ranks alike or on some.
Status ExplainErrors(const Descriptions& descriptions, const std::vector<Group>& errors) {
  if (errors.size() == 1) return Status(StatusCode::kInvalidArgument, errors[0].value);
  std::vector<Group> wrong;
  std::copy_if(errors.begin(), errors.end(), std::back_inserter(wrong),
               [](const Group& group) { return !group.value.empty(); });
  const auto names_wrong = [](const Submission& submission) {
    return !ValueAt(submission.fields, kError).empty();
  };
  const std::vector<Field>& first =
      std::find_if(descriptions.begin(), descriptions.end(), names_wrong)->fields;
  const std::string operation = ValueAt(first, kOperation);
  const std::string name = ValueAt(first, kName);
  const std::string text =
      Join(wrong, [](const Group& group) { return RankList(group.ranks) + ": " + group.value; });
  // Of a timeline it is a file of that rank that is in the way, and no branch of the script.
  const bool recording = operation == NameOf(Operation::kStartTimeline);
  return Status(StatusCode::kFailedPrecondition,
                operation + (name.empty() ? "" : " '" + name + "'") +
                    (recording ? " failed" : " has wrong arguments") + " on some ranks: " + text +
                    (recording ? "" : kAdvice));
}

Status ExplainDeeds(const std::vector<Group>& deeds, bool in_threads) {
  const bool finished = std::any_of(deeds.begin(), deeds.end(), [](const Group& group) {
    return group.value.compare(0, 4, "has ") == 0;
  });
  return Status(StatusCode::kFailedPrecondition,
                "the ranks are out of step: " +
                    Join(deeds,
                         [](const Group& group) {
                           return RankList(group.ranks) + " " + Plural(group.value, group);
                         }) +
                    "." + (finished ? kStepsAdvice : "") + (in_threads ? kThreadAdvice : kAdvice));
}

}  // namespace

Status ExplainMismatch(const std::vector<std::vector<Field>>& by_rank,
                       const std::vector<int>& world_ranks) {
  // A rank that has joined takes part in whatever the others do, so it is not what they differ in.
  Descriptions descriptions;
  Descriptions joined;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const bool has_joined = ValueAt(by_rank[rank], kOperation) == NameOf(Operation::kJoin);
    (has_joined ? joined : descriptions).push_back({world_ranks[rank], by_rank[rank]});
  }
  if (descriptions.empty()) descriptions = std::move(joined);
  const std::vector<Group> errors = GroupByField(descriptions, kError);
  const bool any_error = errors.size() > 1 || !errors[0].value.empty();
  if (any_error) return ExplainErrors(descriptions, errors);

  const std::vector<Group> deeds = GroupRanks(descriptions, Deed);
  if (deeds.size() > 1) return ExplainDeeds(deeds, GroupByField(descriptions, kThread).size() > 1);

  const std::string title = ValueAt(descriptions[0].fields, kOperation) + " '" +
                            ValueAt(descriptions[0].fields, kName) + "'";
  size_t longest = 0;
  for (const Submission& submission : descriptions) {
    longest = std::max(longest, submission.fields.size());
  }
  for (size_t index = kFirstAttribute; index < longest; ++index) {
    const std::vector<Group> values = GroupByField(descriptions, index);
    if (values.size() == 1) continue;
    const auto labelled = std::find_if(
        descriptions.begin(), descriptions.end(),
        [index](const Submission& submission) { return index < submission.fields.size(); });
    return Status(
        StatusCode::kFailedPrecondition,
        title + " differs between ranks: " + labelled->fields[index].label + " is " +
            Join(values,
                 [](const Group& group) { return group.value + " on " + RankList(group.ranks); }) +
            "." + kAdvice);
  }
  return Status(StatusCode::kFailedPrecondition,
                title + " differs between ranks, in a tensor beyond the first " +
                    std::to_string(kMaxDescriptionBytes) + " bytes of its description." + kAdvice);
}

Status CompareRows(const std::string& title, const Call& call, const std::vector<int64_t>& rows) {
  const size_t tensors = call.tensors->size();
  for (size_t t = 0; t < tensors; ++t) {
    const size_t size = rows.size() / tensors;
    const std::vector<int64_t> by_rank(rows.begin() + t * size, rows.begin() + (t + 1) * size);
    if (std::count(by_rank.begin(), by_rank.end(), by_rank[0]) == static_cast<int64_t>(size)) {
      continue;
    }
    std::string text;
    for (int64_t of_rank : by_rank) text += (text.empty() ? "" : ", ") + std::to_string(of_rank);
    return Status(StatusCode::kInvalidArgument,
                  title + " needs the same number of rows on every rank; received for tensor '" +
                      (*call.tensor_names)[t] + "' by rank: " + text + ".");
  }
  return Status::Ok();
}

}  // namespace tfdist
