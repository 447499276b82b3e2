#include "src/comm/mpi/check_mpi.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace llm {

std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return "MPI error " + std::to_string(code);
  }
  return std::string(text.data(), static_cast<std::size_t>(length));
}

void throw_mpi_error(const char* call, int code, int peer) {
  const std::string_view source(call);
  const std::string_view name = source.substr(0, source.find('('));
  throw MpiError(fmt::format("{}{} failed: {}", name,
                             peer == no_peer ? "" : fmt::format(" with rank {}", peer),
                             mpi_text(code)));
}

}  // namespace llm
