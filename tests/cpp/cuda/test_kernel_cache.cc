// Kernels are compiled once, and nothing but what was compiled for exactly this comes back.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/kernel_cache.h"
#include "expect.h"

using tfdist::KernelCache;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

class FakeCompiler : public tfdist::KernelCompiler {
 public:
  std::string Describe() const override { return "a fake"; }
  int version() const override { return version_; }
  Status Compile(const std::string& source, const std::string& architecture,
                 std::string* image) override {
    ++compiled;
    if (source == "wrong") return Status(StatusCode::kInternal, "no kernel");
    *image = architecture + std::string(1, '\0') + source + std::to_string(version_);
    return Status::Ok();
  }

  int compiled = 0;
  int version_ = 12009;
};

// A new folder, removed with its files at the end of the scope.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/tfdist-kernels.XXXXXX";
    base_ = mkdtemp(name);
    path = base_ + "/cache/kernels";
  }
  ~Folder() {
    for (const std::string& file : Files()) unlink(file.c_str());
    for (const std::string& part : {path, base_ + "/cache", base_}) rmdir(part.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    DIR* const folder = opendir(path.c_str());
    if (folder == nullptr) return files;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") files.push_back(path + "/" + name);
    }
    closedir(folder);
    return files;
  }

  std::string path;

 private:
  std::string base_;
};

std::string ImageOf(FakeCompiler* compiler, const std::string& folder, const std::string& source,
                    const std::string& architecture = "sm_80") {
  KernelCache cache(compiler, folder);
  std::string image;
  EXPECT_EQ(cache.Image(source, architecture, &image).message(), "");
  return image;
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Overwrite(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST(KernelsAreCompiledOnceForEachSourceDeviceAndCompiler) {
  const Folder folder;
  FakeCompiler compiler;
  const std::string first = ImageOf(&compiler, folder.path, "one");
  EXPECT(ImageOf(&compiler, folder.path, "one") == first);
  EXPECT_EQ(compiler.compiled, 1);
  EXPECT(ImageOf(&compiler, folder.path, "two") != first);
  EXPECT(ImageOf(&compiler, folder.path, "one", "sm_90") != first);
  compiler.version_ = 13000;
  EXPECT(ImageOf(&compiler, folder.path, "one") != first);
  EXPECT_EQ(compiler.compiled, 4);
  EXPECT_EQ(folder.Files().size(), size_t{4});  // and no file of a writer is left
}

TEST(DamagedKernelsAreCompiledAgain) {
  const Folder folder;
  FakeCompiler compiler;
  const std::string image = ImageOf(&compiler, folder.path, "source");
  const std::string file = folder.Files().at(0);
  const std::string whole = Contents(file);
  for (size_t length = 0; length < whole.size(); ++length) {
    Overwrite(file, whole.substr(0, length));
    EXPECT(ImageOf(&compiler, folder.path, "source") == image);
    EXPECT(Contents(file) == whole);
  }
  for (size_t place = 0; place < whole.size(); ++place) {
    std::string wrong = whole;
    wrong[place] = static_cast<char>(wrong[place] ^ 1);
    Overwrite(file, wrong);
    EXPECT(ImageOf(&compiler, folder.path, "source") == image);
  }
  EXPECT_EQ(compiler.compiled, static_cast<int>(1 + 2 * whole.size()));
}

TEST(KernelsThatOthersCouldHaveWrittenAreNotRun) {
  const Folder folder;
  FakeCompiler compiler;
  ImageOf(&compiler, folder.path, "source");
  const std::string file = folder.Files().at(0);
  struct stat facts;
  EXPECT(stat(file.c_str(), &facts) == 0 && (facts.st_mode & 077) == 0);
  EXPECT(stat(folder.path.c_str(), &facts) == 0 && (facts.st_mode & 077) == 0);
  EXPECT_EQ(chmod(file.c_str(), 0666), 0);
  ImageOf(&compiler, folder.path, "source");
  EXPECT_EQ(compiler.compiled, 2);
  EXPECT(stat(file.c_str(), &facts) == 0 && (facts.st_mode & 077) == 0);
  const std::string elsewhere = folder.path + "/elsewhere";
  EXPECT_EQ(rename(file.c_str(), elsewhere.c_str()), 0);
  EXPECT_EQ(symlink(elsewhere.c_str(), file.c_str()), 0);
  ImageOf(&compiler, folder.path, "source");
  EXPECT_EQ(compiler.compiled, 3);
}

TEST(KernelsAreCompiledEachTimeWhereNothingCanBeKept) {
  FakeCompiler compiler;
  for (const char* folder : {"", "/dev/null/kernels"}) {
    const int before = compiler.compiled;
    EXPECT(ImageOf(&compiler, folder, "one") == ImageOf(&compiler, folder, "one"));
    EXPECT_EQ(compiler.compiled, before + 2);
  }
}

TEST(KernelsThatDoNotCompileAreNotKept) {
  const Folder folder;
  FakeCompiler compiler;
  KernelCache cache(&compiler, folder.path);
  std::string image;
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(cache.Image("wrong", "sm_80", &image).message(), "no kernel");
  EXPECT_EQ(compiler.compiled, 2);
  EXPECT_EQ(folder.Files().size(), size_t{0});
}
