#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/comm/mpi/mpi_session.h"
#include "src/doctor/examine.h"

namespace {

using llm::ExitCode;

constexpr const char* footer = R"(
Start it as the training would be started:
  mpirun -n 4 llm-doctor
  srun --mpi=pmix -K -n 4 llm-doctor --folder /scratch/me

Exit codes: 0 nothing is wrong, 64 wrong usage, 70 the machine is wrong (a slow link, core or disk,
a clock), 74 the folder cannot be written, 78 the launch is wrong (cores that ranks share).)";

struct CommandLine {
  std::string folder = ".";
  bool json = false;
};

[[noreturn]] void leave(ExitCode code, const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  std::exit(static_cast<int>(code));
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"Looks at what ranks run on: launcher, cores, network, clocks, disk, products.",
               "llm-doctor"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-doctor 0.1.0");
  app.add_option("--folder", line.folder,
                 "whose disk is measured, with 64 MiB that are removed again")
      ->capture_default_str();
  app.add_flag("--json", line.json, "one JSON object in place of the table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    leave(ExitCode::usage, fmt::format("{}; llm-doctor --help lists what there is", error.what()));
  }
  return line;
}

int examine(const llm::MpiSession& session, const CommandLine& line) {
  const llm::DoctorFacts facts = llm::examine(session, line.folder);
  std::string code = "0";
  if (session.rank() == 0) {
    const std::vector<llm::Finding> found = llm::findings(facts);
    fmt::print("{}", line.json ? llm::to_json(facts, found) : llm::to_text(facts, found));
    std::fflush(stdout);
    code = std::to_string(llm::exit_code_of(found));
  }
  return std::stoi(session.broadcast(code));
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  try {
    llm::MpiSession session;
    return llm::run_and_report(session, [&] { return examine(session, line); });
  } catch (const llm::Error& error) {
    leave(error.code(), error.what());
  } catch (const std::exception& error) {
    leave(ExitCode::internal, error.what());
  }
}
