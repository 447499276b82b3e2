#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/utf8.h"
#include "src/data/sft_example.h"
#include "src/train/cores.h"
#include "src/train/device.h"
#include "src/train/text_model.h"

namespace {

using llm::ExitCode;
using llm::TextModel;

struct CommandLine {
  TextModel::Config model;
  std::string device = "auto";
  TextModel::Writing writing;
  std::string prompt;
  bool has_prompt = false;
  std::string instruction;
  bool has_instruction = false;
  std::string input;
  std::vector<std::string> eval;
  std::string text_column = "text";
  std::int64_t seq_len = 0;
  bool quiet = false;
};

constexpr const char* footer = R"(
MODEL is a Hugging Face folder (gpt2, llama, mixtral), the folder of a run of llm-train, a full
checkpoint, or a folder of checkpoints, of which the last is taken.

  llm-generate --model runs/base --prompt 'Once upon a time' --temperature 0.7 --top-p 0.9
  llm-generate --model runs/tuned --instruction 'Write the word in capitals.' --input rank
  llm-generate --model runs/base --eval 'held-out/*.txt'

Text goes to standard output as it is written, everything else to standard error. The same seed
gives the same text.

Exit codes: 0 done, 64 wrong usage, 65 wrong data, weights or tokenizer, 70 a fault,
74 a file that cannot be read, 78 what this model cannot do.)";

[[noreturn]] void leave(ExitCode code, const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  std::exit(static_cast<int>(code));
}

void add_options(CLI::App& app, CommandLine& line) {
  app.add_option("--model", line.model.folder, "the folder of a model")->required();
  app.add_option("--tokenizer", line.model.tokenizer,
                 "a tokenizer.json, a folder that holds one, or byte; by default the model's own");
  app.add_option(
      "--prompt", line.prompt,
      "what the text goes on from (special tokens may be spelled out); '' begins a text");
  app.add_option("--instruction", line.instruction,
                 "instead of a prompt: an instruction as --task sft writes it");
  app.add_option("--input", line.input, "what the instruction is about")
      ->needs(app.get_option("--instruction"));
  app.add_option("--max-new-tokens", line.writing.max_new_tokens, "tokens at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--temperature", line.writing.sampling.temperature,
                 "below 1 likelier tokens are drawn more often; 0 takes the likeliest")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--top-k", line.writing.sampling.top_k,
                 "draw from so many likeliest tokens; 0: from all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--top-p", line.writing.sampling.top_p,
                 "draw from the fewest tokens that have this probability together")
      ->capture_default_str();
  app.add_option("--seed", line.writing.seed, "of the draws")->capture_default_str();
  app.add_option("--eval", line.eval,
                 "instead of writing: loss and perplexity of text, .jsonl or .bin files");
  app.add_option("--seq-len", line.seq_len,
                 "with --eval: tokens of a sample; by default the run's, or 1024")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  app.add_option("--text-column", line.text_column, "with --eval: the field of a .jsonl line")
      ->capture_default_str();
  app.add_option("--threads", line.model.n_threads, "0: one for each core")
      ->check(CLI::Range(0, 4096))
      ->default_val(0);
  app.add_option("--device", line.device,
                 "where it computes: auto is cuda if there is one, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--quiet", line.quiet, "nothing on standard error but errors");
}

/// What CLI11 does not check.
void check(const CommandLine& line) {
  const double top_p = line.writing.sampling.top_p;
  if (!(top_p > 0 && top_p <= 1)) {
    throw llm::UsageError(fmt::format("--top-p: {} is not above 0 and at most 1", top_p));
  }
  if (!std::isfinite(line.writing.sampling.temperature)) {
    throw llm::UsageError("--temperature: is not a number; write 0 or more");
  }
  const int n_tasks = int{line.has_prompt} + int{line.has_instruction} + int{!line.eval.empty()};
  if (n_tasks != 1) {
    throw llm::UsageError(
        fmt::format("{} of --prompt, --instruction and --eval are given; give one", n_tasks));
  }
  if (line.seq_len > 0 && line.eval.empty()) {
    throw llm::UsageError("--seq-len belongs to --eval; --max-new-tokens is how long a text gets");
  }
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  line.writing.sampling.temperature = 0.8;
  CLI::App app{"Writes text with a model, or measures it on text.", "llm-generate"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-generate 0.1.0");
  add_options(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    leave(ExitCode::usage,
          fmt::format("{}; llm-generate --help lists what there is", error.what()));
  }
  line.has_prompt = app.count("--prompt") > 0;
  line.has_instruction = app.count("--instruction") > 0;
  if (line.model.n_threads == 0) line.model.n_threads = static_cast<int>(llm::bound_cores().size());
  return line;
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void write(TextModel& model, const CommandLine& line) {
  const std::string prompt =
      line.has_instruction ? llm::sft_prompt(line.instruction, line.input) : line.prompt;
  llm::TextStream stream;
  const TextModel::Written written =
      model.write(prompt, line.writing, [&](std::string_view bytes) { show(stream.add(bytes)); });
  show(stream.finish() + "\n");
  if (line.quiet) return;
  const char* end = "";
  if (written.end == TextModel::End::end_token) end = "; ended by the end token";
  if (written.end == TextModel::End::positions) end = "; ended at the model's last position";
  fmt::print(stderr, "{} tokens read in {:.2f} s, {} written, {:.1f} a second{}\n",
             written.n_prompt, written.prompt_seconds, written.n_new,
             static_cast<double>(written.n_new) / std::max(written.seconds, 1e-9), end);
}

void evaluate(TextModel& model, const CommandLine& line) {
  const std::int64_t n_positions = model.config().max_seq_len;
  if (line.seq_len > n_positions) {
    throw llm::ConfigError(
        fmt::format("--seq-len: {} is more than the model's {} positions; lower "
                    "it",
                    line.seq_len, n_positions));
  }
  std::int64_t seq_len = line.seq_len;
  if (seq_len == 0) seq_len = model.trained_seq_len();
  if (seq_len == 0) seq_len = 1024;
  const llm::Corpus corpus =
      llm::find_corpus({.patterns = line.eval, .text_field = line.text_column, .field = "--eval"});
  const TextModel::Loss loss = model.evaluate(corpus, std::min(seq_len, n_positions));
  fmt::print(
      "loss {:.6f}  perplexity {:.4f}  {} tokens in {} sample{} of {}{}\n", loss.loss,
      loss.perplexity(), loss.n_tokens, loss.n_samples, loss.n_samples == 1 ? "" : "s",
      loss.seq_len,
      loss.n_left_out == 0 ? "" : fmt::format(", {} after the last not counted", loss.n_left_out));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CommandLine line = parse(argc, argv);
    check(line);
    line.model.device = llm::own_device(line.device, "--device").device;
    TextModel model(line.model);
    if (!line.quiet) fmt::print(stderr, "{}\n", model.summary());
    if (line.eval.empty()) {
      write(model, line);
    } else {
      evaluate(model, line);
    }
    return 0;
  } catch (const llm::Error& error) {
    leave(error.code(), error.what());
  } catch (const std::exception& error) {
    leave(ExitCode::internal, error.what());
  }
}
