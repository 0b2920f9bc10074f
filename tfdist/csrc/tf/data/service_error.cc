#include "tf/data/service_error.h"

#include <string_view>

namespace tfdist {
namespace {

struct Advice {
  std::string_view sign;  // what stands in the error
  std::string_view advice;
};

constexpr std::string_view kForgotten =
    "The dispatcher no longer knows this pass, as happens after a restart without a journal. "
    "Start it with --work-dir and --fault-tolerant, and restart training.";

// The first whose sign is found counts.
constexpr Advice kAdvice[] = {
    {"Could not find callback with key=pyfunc",
     "The dataset calls a Python function (py_function, numpy_function or from_generator), which "
     "exists only in the process that made it, not on the workers. Use TensorFlow operations, or "
     "put that step after `distribute`."},
    {"No space left on device",
     "The disk of that file, such as the dispatcher's work dir, is full. Free space there, and "
     "read again; no restart is needed."},
    {"Disk quota exceeded", "Free space where that file is, or raise the quota, and read again."},
    {"File too large",
     "That file, such as the dispatcher's journal, has reached its size limit. Raise the limit "
     "(ulimit -f), and restart that server."},
    {"Unknown iteration client id", kForgotten},
    {"Failed to get split: Iteration id", kForgotten},
    {"the service carries at most", ""},  // ours, complete
    {"dynamic sharding does not reach", ""},
    {"Error in user-defined function",
     "A function of the dataset failed on that worker. Read the dataset without `distribute` to "
     "reproduce the error in this process; to skip such elements, put `ignore_errors` before "
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
             " accepts connections but does not answer; it is frozen or overloaded";
    case Answer::kOther:
      return "what listens at " + service +
             " does not answer like a dispatcher; it is another program";
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
      "the data service at " + service + " delivered no element for " + Seconds(wait_ms) +
      ", the limit of one wait (wait_seconds). " +
      (note.empty() ? "No dead worker is known." : note) +
      " Check the workers with: tfdist data-service status " + service +
      ". If an element may take longer, for example while a shuffle buffer fills, raise "
      "wait_seconds.");
}

absl::Status NoDispatcher(const std::string& service, int64_t wait_ms, Answer answer) {
  return absl::UnavailableError(
      Lack(service, answer) + "; tried for " + Seconds(wait_ms) +
      " (wait_seconds), at the start of a pass over the data. Restart the dispatcher at this "
      "address, or pass `distribute` the address of a running one.");
}

absl::Status TooLarge(int64_t bytes, int64_t largest_bytes) {
  return absl::InvalidArgumentError(
      "an element of the dataset has " + std::to_string(bytes) +
      " bytes; the service carries at most " + std::to_string(largest_bytes) +
      " bytes per element. Make them smaller: `batch` fewer rows, or `batch` after `distribute`, "
      "where it runs in the trainer.");
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
