#include "cuda/loaded_nvrtc.h"

#include <iterator>

#include "cuda/shared_library.h"

namespace tfdist {
namespace {

// What the process may have loaded already. First the one whose images every driver loads that
// tfdist can use: those of NVRTC 13 need a driver for CUDA 13.
constexpr const char* kSonames[] = {"libnvrtc.so.12", "libnvrtc.so.13"};

using Program = struct _nvrtcProgram*;

// The C functions, by name; each returns 0 for success.
struct NvrtcFunctions {
  int (*nvrtcVersion)(int* major, int* minor);
  const char* (*nvrtcGetErrorString)(int result);
  int (*nvrtcCreateProgram)(Program*, const char* source, const char* name, int headers,
                            const char* const* sources, const char* const* names);
  int (*nvrtcDestroyProgram)(Program*);
  int (*nvrtcCompileProgram)(Program, int options, const char* const* texts);
  int (*nvrtcGetProgramLogSize)(Program, size_t*);
  int (*nvrtcGetProgramLog)(Program, char*);
  int (*nvrtcGetCUBINSize)(Program, size_t*);
  int (*nvrtcGetCUBIN)(Program, char*);
};

void FindAll(SharedLibrary* library, NvrtcFunctions* functions) {
#define TFDIST_FIND(name) library->Find(#name, &functions->name)
  TFDIST_FIND(nvrtcVersion);
  TFDIST_FIND(nvrtcGetErrorString);
  TFDIST_FIND(nvrtcCreateProgram);
  TFDIST_FIND(nvrtcDestroyProgram);
  TFDIST_FIND(nvrtcCompileProgram);
  TFDIST_FIND(nvrtcGetProgramLogSize);
  TFDIST_FIND(nvrtcGetProgramLog);
  TFDIST_FIND(nvrtcGetCUBINSize);
  TFDIST_FIND(nvrtcGetCUBIN);
#undef TFDIST_FIND
}

class LoadedNvrtc : public KernelCompiler {
 public:
  LoadedNvrtc(const NvrtcFunctions& functions, int major, int minor, const std::string& path)
      : call_(functions),
        version_(1000 * major + minor),
        description_("NVRTC " + std::to_string(major) + "." + std::to_string(minor) + " (" + path +
                     ")") {}

  std::string Describe() const override { return description_; }
  int version() const override { return version_; }

  Status Compile(const std::string& source, const std::string& architecture,
                 std::string* image) override {
    Program program = nullptr;
    int result =
        call_.nvrtcCreateProgram(&program, source.c_str(), "tfdist.cu", 0, nullptr, nullptr);
    if (result != 0) return Failed(architecture, result, "");
    const std::string target = "--gpu-architecture=" + architecture;
    const char* const options[] = {target.c_str(), "--std=c++17"};
    result = call_.nvrtcCompileProgram(program, 2, options);
    Status status = Status::Ok();
    size_t bytes = 0;
    if (result == 0) result = call_.nvrtcGetCUBINSize(program, &bytes);
    image->assign(bytes, '\0');
    if (result == 0) result = call_.nvrtcGetCUBIN(program, &(*image)[0]);
    if (result != 0) status = Failed(architecture, result, LogOf(program));
    call_.nvrtcDestroyProgram(&program);
    return status;
  }

 private:
  Status Failed(const std::string& architecture, int result, const std::string& log) const {
    return Status(StatusCode::kInternal,
                  description_ + " could not compile the kernels for " + architecture + ": " +
                      call_.nvrtcGetErrorString(result) + (log.empty() ? "" : "\n" + log) +
                      "\nInstall a newer nvidia-cuda-nvrtc-cu12 to support newer GPUs.");
  }

  std::string LogOf(Program program) const {
    size_t bytes = 0;
    if (call_.nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes < 2) return "";
    std::string log(bytes, '\0');
    if (call_.nvrtcGetProgramLog(program, &log[0]) != 0) return "";
    return log.substr(0, bytes - 1);  // without its terminating zero
  }

  const NvrtcFunctions call_;
  const int version_;
  const std::string description_;
};

}  // namespace

Status LoadNvrtc(const std::vector<std::string>& paths, std::unique_ptr<KernelCompiler>* compiler) {
  SharedLibrary library({std::begin(kSonames), std::end(kSonames)}, paths);
  if (!library.IsOpen()) {
    return Status(StatusCode::kUnimplemented,
                  "NVRTC was not found. Install tensorflow[and-cuda] or nvidia-cuda-nvrtc-cu12, "
                  "or set TFDIST_NVRTC_LIBRARY to a library. Tried:" +
                      library.tried());
  }
  NvrtcFunctions functions;
  FindAll(&library, &functions);
  int major = 0, minor = 0;
  if (!library.missing().empty() || functions.nvrtcVersion(&major, &minor) != 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "the NVRTC found lacks required functions; install a newer "
                  "nvidia-cuda-nvrtc-cu12.");
  }
  const std::string path = SharedLibrary::FileOf(functions.nvrtcVersion);
  *compiler =
      std::make_unique<LoadedNvrtc>(functions, major, minor, path.empty() ? kSonames[0] : path);
  return Status::Ok();
}

}  // namespace tfdist
