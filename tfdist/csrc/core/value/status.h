// The result of an operation that can fail: a code and a message for a person.
//
// No exception crosses a room's door; every function that can fail returns a Status, and every
// completion carries one. The numbers are those of absl::StatusCode, so that an adapter can cast.
#ifndef TFDIST_CORE_VALUE_STATUS_H_
#define TFDIST_CORE_VALUE_STATUS_H_

#include <string>
#include <utility>

namespace tfdist {

enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 3,     // the caller's arguments are wrong on this rank alone
  kDeadlineExceeded = 4,    // a wait outlasted its deadline
  kResourceExhausted = 8,   // no memory for a result on this rank alone
  kFailedPrecondition = 9,  // the ranks submitted different things
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // a peer or the transport is lost
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tfdist

// Returns from the calling function when `expression` is an error.
#define TFDIST_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                            \
    if (::tfdist::Status tfdist_status = (expression); !tfdist_status.ok()) return tfdist_status; \
  } while (false)

#endif  // TFDIST_CORE_VALUE_STATUS_H_
