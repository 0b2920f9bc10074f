#include "tf/data/service_error.h"

#include <string_view>

namespace tfdist {
namespace {

struct Advice {
  std::string_view sign;  // what stands in the error
  std::string_view advice;
};

constexpr std::string_view kForgotten =
    "The dispatcher knows nothing of this pass any more, as after a start without a journal: start "
    "it with --work-dir and --fault-tolerant, and start training again.";

// The first whose sign is found counts.
constexpr Advice kAdvice[] = {
    {"Could not find callback with key=pyfunc",
     "The dataset calls a Python function (py_function, numpy_function or from_generator), which "
     "is there only in the process that made it; workers are other processes. Use TensorFlow's "
     "own operations, or put that step behind `distribute`."},
    {"No space left on device",
     "The disk of that file, such as the dispatcher's work dir, is full: make room there, and "
     "read again; nothing needs to be started again."},
    {"Disk quota exceeded", "Make room where that file is, or raise the quota, and read again."},
    {"File too large",
     "That file, such as the dispatcher's journal, may not grow further: raise the limit (ulimit "
     "-f), and start that server again."},
    {"Unknown iteration client id", kForgotten},
    {"Failed to get split: Iteration id", kForgotten},
    {"the service carries at most", ""},  // ours, complete
    {"dynamic sharding does not reach", ""},
    {"Error in user-defined function",
     "A function of the dataset failed on that worker. Read the dataset without `distribute` to "
     "see it fail in this process; to leave such elements out, put `ignore_errors` before "
     "`distribute`."},
};

std::string Seconds(int64_t ms) {
  std::string text = std::to_string(ms / 1000);
  if (ms % 1000 != 0) text += "." + std::to_string(1000 + ms % 1000).substr(1);
  return text + " s";
}

std::string Lack(const std::string& service, Answer answer) {
  switch (answer) {
    case Answer::kSilent:
      return "what listens at " + service +
             " takes connections and does not answer; it is frozen or overloaded";
    case Answer::kOther:
      return "what listens at " + service +
             " does not answer as a dispatcher does; it is another program";
    case Answer::kUnreachable:
      return "no dispatcher of a data service listens at " + service +
             ", which cannot be reached from here";
    default:
      return "no dispatcher of a data service listens at " + service;
  }
}

}  // namespace

absl::Status NoElement(const std::string& service, int64_t wait_ms, const std::string& note) {
  return absl::DeadlineExceededError(
      "the data service at " + service + " gave no element for " + Seconds(wait_ms) +
      ", the bound of one wait (wait_seconds). " +
      (note.empty() ? "Nothing is known of a dead worker." : note) +
      " Look at the workers with: tfdist data-service status " + service +
      ". Where an element may take longer, as while a shuffle buffer fills, raise wait_seconds.");
}

absl::Status NoDispatcher(const std::string& service, int64_t wait_ms, Answer answer) {
  return absl::UnavailableError(
      Lack(service, answer) + "; tried for " + Seconds(wait_ms) +
      " (wait_seconds), at the start of a pass over the data. Start the dispatcher again at this "
      "address, or give `distribute` the address of one that runs.");
}

absl::Status TooLarge(int64_t bytes, int64_t largest_bytes) {
  return absl::InvalidArgumentError(
      "an element of the dataset has " + std::to_string(bytes) +
      " bytes; the service carries at most " + std::to_string(largest_bytes) +
      " bytes in one element. Deliver smaller ones: `batch` with fewer rows, or behind "
      "`distribute`, where it runs in the trainer.");
}

absl::Status Explained(const absl::Status& status, const std::string& service) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  const std::string_view message(status.message().data(), status.message().size());
  for (const Advice& each : kAdvice) {
    if (message.find(each.sign) == std::string_view::npos) continue;
    if (each.advice.empty()) return status;
    absl::Status explained(status.code(), std::string(message) + "\nFrom the data service at " +
                                              service + ": " + std::string(each.advice));
    status.ForEachPayload([&explained](absl::string_view url, const absl::Cord& payload) {
      explained.SetPayload(url, payload);
    });
    return explained;
  }
  return status;
}

}  // namespace tfdist
