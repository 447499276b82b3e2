#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace llm {

/// What the process returns to its launcher. Never 0 or a multiple of 256 after a fault: mpirun
/// turns those into success.
enum class ExitCode : int {
  ok = 0,
  usage = 64,     ///< the command line is wrong
  data = 65,      ///< a data set, token file or tensor file is wrong
  internal = 70,  ///< a bug, a lost peer, a stall
  file = 74,      ///< reading or writing failed
  stopped = 75,   ///< stopped by a signal, after saving
  config = 78,    ///< the configuration or the launch is wrong
};

/// Every failure of this program: a message for the one cause line, and the exit code.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// The command line is wrong: names the argument and the way out.
struct UsageError : Error {
  explicit UsageError(const std::string& m) : Error(ExitCode::usage, m) {}
};
/// A configuration or launch that is refused: names the field, both numbers and the way out.
struct ConfigError : Error {
  explicit ConfigError(const std::string& m) : Error(ExitCode::config, m) {}
};
/// Input data that is refused: names the file, the place in it and what was expected.
struct DataError : Error {
  explicit DataError(const std::string& m) : Error(ExitCode::data, m) {}
};
/// A file or folder that cannot be read or written: names the path and the system's reason.
struct FileError : Error {
  explicit FileError(const std::string& m) : Error(ExitCode::file, m) {}
};
/// The wire: a lost peer, a failed MPI call, a message that does not match what was expected.
struct CommError : Error {
  explicit CommError(const std::string& m) : Error(ExitCode::internal, m) {}
};
/// Nothing moved for longer than distributed.collective_timeout_seconds.
struct StallError : Error {
  explicit StallError(const std::string& m) : Error(ExitCode::internal, m) {}
};
/// The system gave no memory for a tensor.
struct OutOfMemory : Error {
  explicit OutOfMemory(std::int64_t n_bytes_)
      : Error(ExitCode::internal,
              "out of memory: " + std::to_string(n_bytes_) + " bytes asked for"),
        n_bytes(n_bytes_) {}
  std::int64_t n_bytes;  ///< what was asked for
};
/// A bug of this program (CHECK_CONTRACT).
struct ContractBroken : Error {
  explicit ContractBroken(const std::string& m) : Error(ExitCode::internal, m) {}
};

}  // namespace llm
