#include "cuda/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace tfdist {
namespace {

// FNV-1a.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Makes `folder` and those above it, for this user alone.
bool MakeFolder(const std::string& folder) {
  for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    if (mkdir(part.c_str(), S_IRWXU) != 0 && errno != EEXIST) return false;
    if (end == std::string::npos) return true;
  }
}

// A descriptor that is closed with its scope.
class File {
 public:
  File(const std::string& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool IsOpen() const { return descriptor_ >= 0; }

  // Whether it is a plain file that nobody but this user can have written.
  bool IsOurs() const {
    struct stat facts;
    return fstat(descriptor_, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
           (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  }

  bool ReadAll(std::string* text) const {
    char piece[1 << 16];
    while (true) {
      const ssize_t bytes = read(descriptor_, piece, sizeof(piece));
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) return bytes == 0;
      text->append(piece, static_cast<size_t>(bytes));
    }
  }

  bool WriteAll(const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t bytes = write(descriptor_, text.data() + done, text.size() - done);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) return false;
      done += static_cast<size_t>(bytes);
    }
    return fsync(descriptor_) == 0;
  }

 private:
  const int descriptor_;
};

}  // namespace

KernelCache::KernelCache(KernelCompiler* compiler, std::string folder)
    : compiler_(compiler), folder_(std::move(folder)) {}

// All that an image depends on.
std::string KernelCache::Key(const std::string& source, const std::string& architecture) const {
  return "tfdist kernels 1, compiler " + std::to_string(compiler_->version()) + ", " +
         architecture + ", source " + std::to_string(source.size()) + " " + Hex(HashOf(source)) +
         "\n";
}

Status KernelCache::Image(const std::string& source, const std::string& architecture,
                          std::string* image) {
  const std::string key = Key(source, architecture);
  const std::string path = folder_ + "/" + architecture + "-" + Hex(HashOf(key)) + ".image";
  if (!folder_.empty() && Read(path, key, image)) return Status::Ok();
  TFDIST_RETURN_IF_ERROR(compiler_->Compile(source, architecture, image));
  if (!folder_.empty()) Write(path, key, *image);
  return Status::Ok();
}

// A file is its key, the hash of the image as 16 digits and a newline, and the image.
bool KernelCache::Read(const std::string& path, const std::string& key, std::string* image) const {
  const File file(path, O_RDONLY);
  std::string text;
  if (!file.IsOpen() || !file.IsOurs() || !file.ReadAll(&text)) return false;
  const size_t begin = key.size() + Hex(0).size() + 1;
  if (text.size() <= begin || text.compare(0, key.size(), key) != 0) return false;
  *image = text.substr(begin);
  return text.compare(key.size(), begin - key.size(), Hex(HashOf(*image)) + "\n") == 0;
}

// Whether it works or not the image can be used, so nothing is said.
void KernelCache::Write(const std::string& path, const std::string& key,
                        const std::string& image) const {
  if (!MakeFolder(folder_)) return;
  const std::string fresh = path + "." + std::to_string(getpid());
  unlink(fresh.c_str());  // of a process of this number that was killed
  bool complete = false;
  {
    const File file(fresh, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.IsOpen()) return;
    complete = file.WriteAll(key + Hex(HashOf(image)) + "\n" + image);
  }
  if (!complete || rename(fresh.c_str(), path.c_str()) != 0) unlink(fresh.c_str());
}

}  // namespace tfdist
