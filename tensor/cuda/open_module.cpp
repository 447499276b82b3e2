#include "tensor/cuda/open_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <cuda_build.h>
#include "tensor/cuda/module.h"

namespace llm::cuda {
namespace {

constexpr const char* file_name = "llm_cuda.so";

void* opened = nullptr;

/// Whether a driver is here: its library belongs to the machine, not to the toolkit.
bool has_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  dlclose(driver);
  return true;
}

/// Beside the program, in its build folder, or where it is installed; empty: nowhere.
std::filesystem::path find_module() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path installed = std::filesystem::path("llm-train") / file_name;
  for (const std::filesystem::path& path :
       {program / file_name, program / "tensor/cuda" / file_name,
        program.parent_path() / "lib" / installed,
        program.parent_path() / "lib/x86_64-linux-gnu" / installed}) {
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

}  // namespace

std::string open_module() {
  if (has_module()) return "";
  const char* const named = std::getenv("LLM_CUDA_MODULE");
  if (named == nullptr && !has_driver()) {
    return "no NVIDIA driver is here (libcuda.so.1 cannot be opened)";
  }
  const std::filesystem::path path = named != nullptr ? named : find_module();
  if (path.empty()) {
    return std::string(file_name) +
           " is not beside the program; build it with the CUDA Toolkit and meson configure "
           "-Dcuda=enabled";
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  using Entry = const Module* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "llm_cuda_module"));
  if (entry == nullptr) return path.string() + " is no module of this program";
  const Module* const module = entry();
  if (std::string_view(module->build) != LLM_CUDA_BUILD) {
    return path.string() + " is of another build (" + module->build + ", this program's is " +
           LLM_CUDA_BUILD + "); build both together";
  }
  const std::string reason = module->runtime.why_none();
  if (!reason.empty()) return "no device: " + reason;
  use_module(module);
  opened = library;
  return "";
}

void* module_symbol(const char* name) {
  return opened == nullptr ? nullptr : dlsym(opened, name);
}

}  // namespace llm::cuda
