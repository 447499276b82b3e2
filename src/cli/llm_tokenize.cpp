#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/cli/tokenize_files.h"
#include "src/data/bpe_tokenizer.h"

namespace {

using llm::ExitCode;
using Clock = std::chrono::steady_clock;

struct CommandLine {
  std::vector<std::string> files;
  std::string tokenizer;
  std::string text_column = "text";
  std::string format = "llmc";
  std::string progress = "auto";
  int n_threads = 0;
  llm::TokenizeOptions options;
};

constexpr const char* footer = R"(
Files are documents; a .jsonl file has one on each line. Between two documents stands the
tokenizer's end token. Text that spells a special token is plain text.

  llm-tokenize --tokenizer gpt2/tokenizer.json --output data/train 'corpus/**/*.txt'
  llm-train --config-path configs/gpt2-124m.yaml data.dataset_path='data/train-*.bin'

Exit codes: 0 done, 64 wrong usage, 65 wrong data or tokenizer, 70 a fault,
74 a file that cannot be read or written.)";

[[noreturn]] void leave(ExitCode code, const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  std::exit(static_cast<int>(code));
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"Turns text or JSON lines into token files (.bin) on all cores.", "llm-tokenize"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-tokenize 0.1.0");
  app.add_option("--tokenizer", line.tokenizer,
                 "a tokenizer.json (byte-level BPE), a folder that holds one, or byte")
      ->required();
  app.add_option("--output", line.options.output,
                 "shards are OUTPUT-00000.bin, OUTPUT-00001.bin, ...")
      ->required();
  app.add_option("--format", line.format, "llmc (with a header) or nanogpt (u16 tokens alone)")
      ->check(CLI::IsMember({"llmc", "nanogpt"}))
      ->capture_default_str();
  app.add_option("--shard-tokens", line.options.shard_tokens, "tokens of one shard")
      ->check(CLI::Range(std::int64_t{1}, (std::int64_t{1} << 31) - 1))
      ->capture_default_str();
  app.add_option("--text-column", line.text_column,
                 "the field of a .jsonl line that holds its text")
      ->capture_default_str();
  app.add_option("--threads", line.n_threads, "threads that encode; 0: one for each core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--progress", line.progress, "auto: a bar on a terminal, lines elsewhere")
      ->check(CLI::IsMember({"auto", "bar", "line", "off"}))
      ->capture_default_str();
  app.add_option("files", line.files, "files or globs (** any folders, {a,b} either)")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    leave(ExitCode::usage,
          fmt::format("{}; llm-tokenize --help lists what there is", error.what()));
  }
  if (line.n_threads == 0) line.n_threads = static_cast<int>(std::thread::hardware_concurrency());
  line.options.n_threads = std::max(line.n_threads, 1);
  if (line.format == "nanogpt") line.options.format = llm::TokenFormat::nanogpt;
  return line;
}

/// What is shown while the files are read, on standard error.
class Progress {
 public:
  Progress(const std::string& style, std::int64_t n_bytes)
      : n_bytes_(std::max<std::int64_t>(n_bytes, 1)) {
    const char* const told = std::getenv("LLM_TRAIN_TTY");
    const bool has_terminal =
        told != nullptr ? std::string(told) == "1" : isatty(STDERR_FILENO) == 1;
    is_off_ = style == "off";
    is_bar_ = style == "bar" || (style == "auto" && has_terminal);
  }
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t n_done) {
    const std::int64_t percent = 100 * n_done / n_bytes_;
    if (is_off_ || (!is_bar_ && percent < next_line_)) return;
    next_line_ = percent - percent % 10 + 10;
    const double seconds = seconds_since_begin();
    const double rate = static_cast<double>(n_done) / seconds;
    const std::string text =
        fmt::format("{:3} % of {:.1f} MB, {:.1f} MB/s, {:.0f} s left", percent,
                    static_cast<double>(n_bytes_) * 1e-6, rate * 1e-6,
                    static_cast<double>(n_bytes_ - n_done) / std::max(rate, 1.0));
    constexpr std::int64_t width = 30;
    const auto filled = static_cast<std::size_t>(width * percent / 100);
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    if (is_bar_) {
      fmt::print(stderr, "\r[{}] {}\x1b[K", bar, text);
    } else {
      fmt::print(stderr, "tokenizing: {}\n", text);
    }
    is_shown_ = is_bar_;
  }

  void clear() {
    if (is_shown_) fmt::print(stderr, "\r\x1b[K");
    is_shown_ = false;
  }

  double seconds_since_begin() const {
    return std::max(std::chrono::duration<double>(Clock::now() - begin_).count(), 1e-9);
  }

 private:
  const Clock::time_point begin_ = Clock::now();
  const std::int64_t n_bytes_;
  bool is_off_ = false;
  bool is_bar_ = false;
  bool is_shown_ = false;
  std::int64_t next_line_ = 10;
};

std::unique_ptr<llm::Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<llm::ByteTokenizer>();
  return std::make_unique<llm::BpeTokenizer>(llm::read_tokenizer_files(name));
}

void run(CommandLine& line) {
  const std::unique_ptr<llm::Tokenizer> tokenizer = open_tokenizer(line.tokenizer);
  if (line.options.format == llm::TokenFormat::nanogpt && tokenizer->n_ids() > (1 << 16)) {
    throw llm::UsageError(
        fmt::format("--format nanogpt: its tokens have two bytes, and the tokenizer has {} ids, "
                    "more than 65536; write --format llmc",
                    tokenizer->n_ids()));
  }
  const llm::Corpus corpus =
      llm::find_corpus({.patterns = line.files, .text_field = line.text_column, .field = "files"});
  if (corpus.is_tokens()) {
    throw llm::DataError(fmt::format("{}: is a token file already; give text or .jsonl files",
                                     corpus.files.front().path));
  }
  Progress progress(line.progress, corpus.n_bytes());
  line.options.on_progress = [&](std::int64_t n_done) { progress.show(n_done); };
  const llm::Tokenized done = llm::tokenize_files(corpus, *tokenizer, line.options);
  progress.clear();
  const auto n_bytes = static_cast<double>(corpus.n_bytes());
  fmt::print("{} tokens of {} ids from {} files, {:.1f} MB: {:.2f} bytes a token, {:.1f} MB/s\n",
             done.n_tokens, tokenizer->n_ids(), corpus.files.size(), n_bytes * 1e-6,
             n_bytes / static_cast<double>(done.n_tokens),
             n_bytes * 1e-6 / progress.seconds_since_begin());
  fmt::print("{} {}: {}{}\n", done.paths.size(), done.paths.size() == 1 ? "shard" : "shards",
             done.paths.front(), done.paths.size() == 1 ? "" : " to " + done.paths.back());
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line = parse(argc, argv);
  try {
    run(line);
    return 0;
  } catch (const llm::Error& error) {
    leave(error.code(), error.what());
  } catch (const std::exception& error) {
    leave(ExitCode::internal, error.what());
  }
}
