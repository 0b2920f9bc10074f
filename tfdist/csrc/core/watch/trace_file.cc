#include "core/watch/trace_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tfdist {
namespace {

constexpr char kEnd[] = "\n]\n";

// Where this fails, the file cannot be made either.
void MakeFoldersOf(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0777);
  }
}

}  // namespace

Status TraceFile::Create(const std::string& path) {
  Close();
  path_ = path;
  MakeFoldersOf(path);
  errno = 0;
  file_ = std::fopen(path.c_str(), "wbe");
  if (file_ == nullptr) return Failed("be made");
  std::setvbuf(file_, nullptr, _IONBF, 0);  // what is written is one write, at once
  end_ = 0;
  empty_ = true;
  TFDIST_RETURN_IF_ERROR(Write(std::string("[") + kEnd));
  end_ = 1;
  return Status::Ok();
}

Status TraceFile::Append(const std::string& events) {
  const std::string text = (empty_ ? "\n" : ",\n") + events;
  const Status status = Write(text + kEnd);
  if (!status.ok()) {
    // Some of it may be there, on a disk that is full: take it back.
    if (ftruncate(fileno(file_), end_) == 0) static_cast<void>(Write(kEnd));
    return status;
  }
  end_ += static_cast<int64_t>(text.size());
  empty_ = false;
  return status;
}

void TraceFile::Close() {
  if (file_ != nullptr) std::fclose(file_);
  file_ = nullptr;
}

Status TraceFile::Write(const std::string& text) {
  errno = 0;
  const bool written = std::fseek(file_, static_cast<long>(end_), SEEK_SET) == 0 &&
                       std::fwrite(text.data(), 1, text.size(), file_) == text.size();
  return written ? Status::Ok() : Failed("be written");
}

Status TraceFile::Failed(const char* what) const {
  return Status(StatusCode::kInvalidArgument, "the timeline '" + path_ + "' cannot " + what + ": " +
                                                  std::strerror(errno) +
                                                  ". Choose a file in a writable folder, on a "
                                                  "disk with free space.");
}

}  // namespace tfdist
