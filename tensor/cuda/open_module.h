#pragma once
#include <string>

namespace llm::cuda {

/// Opens the module of CUDA and uses it in this process from now on (use_module). Empty, or in one
/// line why there is none: no driver on this machine, no module beside the program, a library that
/// the module needs is missing, another build's module, or no device. Without a driver nothing is
/// opened that costs time. LLM_CUDA_MODULE names a module that is opened in place of the program's
/// own, without asking for a driver.
std::string open_module();

/// What else the opened module has by this name; nullptr: nothing, or no module was opened.
void* module_symbol(const char* name);

}  // namespace llm::cuda
