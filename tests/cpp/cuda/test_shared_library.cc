// A library that is opened while the program runs, with the C library in the place of NVIDIA's.
#include <string>

#include "cuda/shared_library.h"
#include "expect.h"

using tfdist::SharedLibrary;

namespace {

constexpr const char* kLoaded = "libc.so.6";  // in every process
constexpr const char* kAbsent = "libtfdist-absent.so";

// What can be opened and is no mere name.
std::string PathOfLoaded() {
  SharedLibrary library({kLoaded}, {});
  int (*function)() = nullptr;
  library.Find("getpid", &function);
  return SharedLibrary::FileOf(function);
}

}  // namespace

TEST(SharedLibraryTakesWhatTheProcessHasBeforeAnyPath) {
  SharedLibrary library({kAbsent, kLoaded}, {kAbsent});
  EXPECT(library.IsOpen());
  EXPECT_EQ(library.tried(), "");
  EXPECT_EQ(library.error(), "");
}

TEST(SharedLibraryTriesPathsInTurn) {
  SharedLibrary library({}, {kAbsent, "/nowhere/libtfdist-absent.so.1", kLoaded, "libunread.so"});
  EXPECT(library.IsOpen());
  EXPECT_CONTAINS(library.tried(), "\n  libtfdist-absent.so: ");
  EXPECT_CONTAINS(library.tried(), "\n  /nowhere/libtfdist-absent.so.1: ");
  EXPECT_EQ(library.tried().find(kLoaded), std::string::npos);
  EXPECT_EQ(library.tried().find("libunread.so"), std::string::npos);
}

TEST(SharedLibraryKeepsTheWordsOfTheLoader) {
  const SharedLibrary library({}, {kAbsent, "/nowhere/libtfdist-absent.so.1"});
  EXPECT(!library.IsOpen());
  EXPECT_CONTAINS(library.error(), "/nowhere/libtfdist-absent.so.1: ");
  EXPECT_CONTAINS(library.tried(), "\n  /nowhere/libtfdist-absent.so.1: " + library.error());
  EXPECT_EQ(library.error().find('\n'), std::string::npos);
  EXPECT_EQ(library.error().find("libtfdist-absent.so:"), std::string::npos);  // of the last alone
}

TEST(SharedLibraryTriesNothingButAPathThatWasChosen) {
  const SharedLibrary absent({kLoaded}, {"/nowhere/libtfdist-absent.so"});
  EXPECT(!absent.IsOpen());
  EXPECT_CONTAINS(absent.tried(), "/nowhere/libtfdist-absent.so: ");
  const SharedLibrary present({kAbsent}, {PathOfLoaded()});
  EXPECT(present.IsOpen());
  EXPECT_EQ(present.tried(), "");
  const SharedLibrary name({kLoaded}, {kAbsent});  // a mere name chooses nothing
  EXPECT(name.IsOpen());
}

TEST(SharedLibraryCollectsTheFunctionsThatItLacks) {
  SharedLibrary library({kLoaded}, {});
  int (*present)() = nullptr;
  library.Find("getpid", &present);
  EXPECT(present != nullptr);
  EXPECT_EQ(library.missing(), "");
  int (*absent)() = present;  // is written over
  library.Find("tfdist_absent", &absent);
  EXPECT(absent == nullptr);
  library.Find("getppid", &present);
  library.Find("tfdist_absent_too", &absent);
  EXPECT_EQ(library.missing(), "tfdist_absent, tfdist_absent_too");
}

TEST(SharedLibraryThatIsNotOpenHasNoFunction) {
  SharedLibrary library({}, {kAbsent});
  int (*function)() = [] { return 1; };  // is written over
  library.Find("getpid", &function);     // which the process has
  EXPECT(function == nullptr);
  EXPECT_EQ(library.missing(), "getpid");
}

TEST(SharedLibraryTellsTheFileOfAFunction) {
  const std::string path = PathOfLoaded();
  EXPECT_EQ(path.substr(0, 1), "/");
  EXPECT_CONTAINS(path, kLoaded);
  int (*nothing)() = nullptr;
  EXPECT_EQ(SharedLibrary::FileOf(nothing), "");
}
