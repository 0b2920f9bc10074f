// What a TensorFlow function becomes in XLA's language for a GPU, on a machine that has none: its
// kernels for XLA run, XLA's own compiler does not. And which handlers the calls will find. A
// library for cases.py.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "xla/client/client_library.h"
#include "xla/ffi/api/c_api.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/stream_executor/platform_manager.h"

namespace xla::ffi {
// TensorFlow's own; their header would pull in the compiler.
struct HandlerRegistration {
  XLA_FFI_Metadata metadata;
  XLA_FFI_Handler_Bundle bundle;
};
absl::StatusOr<HandlerRegistration> FindHandler(absl::string_view name, absl::string_view platform);
}  // namespace xla::ffi

namespace {

using tensorflow::XlaCompiler;

// As in cases.py. An element a function's argument, in its order.
struct Argument {
  int32_t is_variable;
  int32_t dtype;  // of TensorFlow
  int32_t rank;
  int64_t dimensions[4];
};

// TensorFlow for the CPU knows no ops of XLA for GPUs: this makes them known.
void KnowGpus() {
  if (tensorflow::XlaOpRegistry::IsBackendRegistered(tensorflow::DEVICE_GPU_XLA_JIT)) return;
  tensorflow::XlaOpRegistry::RegisterBackend(tensorflow::DEVICE_GPU_XLA_JIT,
                                             tensorflow::kGpuAllTypes,
                                             [](tensorflow::KernelDef*) { return true; });
}

XlaCompiler::Argument ToCompiler(const Argument& argument) {
  XlaCompiler::Argument result;
  result.kind = XlaCompiler::Argument::kParameter;
  result.type = static_cast<tensorflow::DataType>(argument.dtype);
  tensorflow::TensorShape shape;
  for (int i = 0; i < argument.rank; ++i) shape.AddDim(argument.dimensions[i]);
  result.shape = shape;
  if (argument.is_variable != 0) {
    result.kind = XlaCompiler::Argument::kResource;
    result.resource_kind = tensorflow::XlaResource::kVariable;
    result.initialized = true;
  }
  return result;
}

absl::StatusOr<std::string> HloText(const tensorflow::FunctionDefLibrary& library,
                                    const std::string& name,
                                    const std::vector<XlaCompiler::Argument>& arguments) {
  const tensorflow::FunctionLibraryDefinition definitions(tensorflow::OpRegistry::Global(),
                                                          library);
  TF_ASSIGN_OR_RETURN(auto* host, stream_executor::PlatformManager::PlatformWithName("Host"));
  XlaCompiler::Options options;
  options.device_type = tensorflow::DeviceType(tensorflow::DEVICE_GPU_XLA_JIT);
  options.flib_def = &definitions;
  TF_ASSIGN_OR_RETURN(options.client, xla::ClientLibrary::GetOrCreateLocalClient(host));
  XlaCompiler compiler(options);
  tensorflow::NameAttrList function;
  function.set_name(name);
  XlaCompiler::CompilationResult result;
  TF_RETURN_IF_ERROR(compiler.CompileFunction({}, function, arguments, &result));
  TF_ASSIGN_OR_RETURN(const xla::ProgramShape shape, result.computation->GetProgramShape());
  TF_ASSIGN_OR_RETURN(
      const auto module,
      xla::HloModule::CreateFromProto(result.computation->proto(), xla::HloModuleConfig(shape)));
  return module->ToString();
}

}  // namespace

// Returns 1 and the text, or 0 and the error; the caller frees it.
extern "C" __attribute__((visibility("default"))) int tfdist_hlo_text(const char* library,
                                                                      int64_t library_bytes,
                                                                      const char* name,
                                                                      const Argument* arguments,
                                                                      int64_t count, char** text) {
  KnowGpus();
  tensorflow::FunctionDefLibrary definitions;
  definitions.ParseFromArray(library, static_cast<int>(library_bytes));
  std::vector<XlaCompiler::Argument> converted;
  for (int64_t i = 0; i < count; ++i) converted.push_back(ToCompiler(arguments[i]));
  const auto hlo = HloText(definitions, name, converted);
  *text = strdup(hlo.ok() ? hlo->c_str() : hlo.status().ToString().c_str());
  return hlo.ok() ? 1 : 0;
}

// The stages a handler is registered for: 1 for execution, 2 for any other; 4 where a CUDA graph
// may take in its calls. 0: no handler.
extern "C" __attribute__((visibility("default"))) int tfdist_handler(const char* name,
                                                                     const char* platform) {
  const auto handler = xla::ffi::FindHandler(name, platform);
  if (!handler.ok()) return 0;
  const XLA_FFI_Handler_Bundle& bundle = handler->bundle;
  const bool others = bundle.instantiate || bundle.prepare || bundle.initialize;
  const bool graphs =
      (handler->metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) != 0;
  return (bundle.execute != nullptr ? 1 : 0) + (others ? 2 : 0) + (graphs ? 4 : 0);
}
