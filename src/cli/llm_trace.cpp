#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/trace/page.h"
#include "src/trace/report.h"
#include "src/trace/trace_file.h"

namespace {

using llm::ExitCode;

constexpr const char* footer = R"(
docs/traces.md says what each number means.

Exit codes: 0 done, 64 wrong usage, 65 a trace that is damaged, of another run, or not of all
ranks, 74 a file that cannot be read or written.)";

struct CommandLine {
  std::string folder;
  std::string merge;
  std::string html;
  std::string run_dir;
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t last = INT64_MAX;
  bool json = false;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"Says where the time of a run's steps went, from the folder of llm-train --trace.",
               "llm-trace"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-trace 0.1.0");
  app.add_option("DIR", line.folder, "the folder of llm-train --trace")->required();
  app.add_option("--merge", line.merge,
                 "the file with the timelines of all ranks, for Perfetto (default: DIR/trace.json; "
                 "with --json none)");
  app.add_option("--html", line.html,
                 "write a page with the timeline, the critical paths and the loss, for a browser");
  app.add_option(
      "--run-dir", line.run_dir,
      "with --html: the run's folder, whose losses are shown (default: as in the trace)");
  app.add_option("--step", line.step, "print the critical path of this step (default: the median)")
      ->check(CLI::Range(std::int64_t{1}, INT64_MAX));
  app.add_option("--first", line.first, "leave out steps before this one");
  app.add_option("--last", line.last, "leave out steps after this one");
  app.add_flag("--json", line.json, "print the figures as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    throw llm::UsageError(fmt::format("{}; llm-trace --help lists what there is", error.what()));
  }
  if (line.merge.empty() && !line.json) {
    line.merge = (std::filesystem::path(line.folder) / "trace.json").string();
  }
  return line;
}

int run(const CommandLine& line) {
  const llm::Timeline timeline = llm::read_timeline(line.folder);
  const std::vector<llm::StepFigures> steps = llm::step_figures(timeline, line.first, line.last);
  if (steps.empty()) {
    throw llm::DataError(
        fmt::format("{}: no step that all ranks have lies in --first to --last", line.folder));
  }
  if (!line.merge.empty()) llm::merge_traces(line.folder, line.merge);
  if (!line.html.empty()) {
    const llm::LossCurve losses =
        llm::read_losses(line.run_dir.empty() ? timeline.run_dir : line.run_dir);
    if (!line.run_dir.empty() && losses.train.empty()) {
      throw llm::FileError(
          fmt::format("--run-dir {}: no metrics.jsonl with a step is here", line.run_dir));
    }
    llm::write_file_atomically(line.html, llm::page_html(timeline, steps, losses));
  }
  if (line.json) {
    fmt::print("{}\n", llm::report_json(timeline, steps));
    return 0;
  }
  fmt::print("{}", llm::report_text(timeline, steps, line.step));
  fmt::print("\n{}: all ranks, for https://ui.perfetto.dev\n", line.merge);
  if (!line.html.empty()) fmt::print("{}: for a browser\n", line.html);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const llm::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}
