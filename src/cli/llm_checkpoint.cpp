#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/checkpoint/store.h"
#include "src/checkpoint/tool.h"

namespace {

using llm::ExitCode;

constexpr const char* footer = R"(
A checkpoint is a folder step-NNNNNNNN that llm-train wrote. show, export and diff take a folder
with a model.safetensors alone too, as its weights.

Exit codes: 0 done (diff: identical, or rounding alone), 1 diff: different, 64 wrong usage,
65 damaged, 74 a file that cannot be read or written.)";

struct CommandLine {
  std::string checkpoint;
  std::string other;
  bool tensors = false;
  double tolerance = 1e-5;
};

int verify(const std::string& checkpoint) {
  const llm::Manifest manifest = llm::verify_checkpoint(checkpoint);
  fmt::print("{}: step {}, all {} files are whole\n", checkpoint, manifest.run.step,
             manifest.files.size());
  return 0;
}

int compare(const CommandLine& line) {
  const llm::Comparison comparison =
      llm::compare_checkpoints(line.checkpoint, line.other, line.tolerance);
  fmt::print("{}\n", comparison.text);
  return comparison.verdict == llm::Comparison::Verdict::different ? 1 : 0;
}

int run(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"Looks at checkpoints of llm-train.", "llm-checkpoint"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-checkpoint 0.1.0");
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* meaning, const char* what) {
    CLI::App* const command = app.add_subcommand(name, meaning);
    command->add_option(what, line.checkpoint, "the checkpoint's folder")->required();
    return command;
  };
  CLI::App* const show = add("show", "print its step, state and files", "CHECKPOINT");
  show->add_flag("--tensors", line.tensors, "and every tensor's shape");
  const CLI::App* const check =
      add("verify", "read every file and hold it against its checksum", "CHECKPOINT");
  CLI::App* const to_folder =
      add("export", "write its weights as a Hugging Face folder", "CHECKPOINT");
  to_folder->add_option("FOLDER", line.other, "the new folder")->required();
  CLI::App* const diff = add("diff", "say whether two are the same, and where they are not", "A");
  diff->add_option("B", line.other, "the other checkpoint's folder")->required();
  diff->add_option("--tolerance", line.tolerance,
                   "rounding is up to this times the largest tensor's norm")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    throw llm::UsageError(
        fmt::format("{}; llm-checkpoint --help lists what there is", error.what()));
  }
  if (*show) {
    fmt::print("{}", llm::show_checkpoint(line.checkpoint, line.tensors));
    return 0;
  }
  if (*check) return verify(line.checkpoint);
  if (*diff) return compare(line);
  llm::export_checkpoint(line.checkpoint, line.other);
  fmt::print("{}: written\n", line.other);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const llm::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}
