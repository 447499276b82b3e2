#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "src/base/file.h"
#include "src/data/sft_samples.h"
#include "tensor/ops/cross_entropy.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr std::int64_t seq_len = 48;

/// Chats whose prompts and answers have lengths of their own, read from a file as a run does.
class Examples {
 public:
  Examples()
      : path_(std::filesystem::temp_directory_path() /
              ("sft_parity-" + std::to_string(::getpid()) + ".jsonl")) {
    std::string lines;
    for (std::size_t i = 0; i < 17; ++i) {
      lines += R"({"messages": [{"role": "user", "content": ")" + std::string(i % 7 + 1, 'q') +
               R"("}, {"role": "assistant", "content": ")" + std::string(i % 5 + 1, 'a') +
               R"("}]})" + "\n";
    }
    write_file_atomically(path_, lines);
    index_ = index_examples(find_corpus({.patterns = {path_.string()}}), tokenizer_,
                            {.seq_len = seq_len, .on_progress = {}});
  }
  Examples(const Examples&) = delete;
  Examples& operator=(const Examples&) = delete;
  ~Examples() { std::filesystem::remove(path_); }

  std::unique_ptr<SampleSource> samples(bool packing) const {
    return std::make_unique<SftSamples>(
        std::make_shared<SftReader>(index_, tokenizer_),
        SftSamples::Config{.examples = {0, static_cast<std::int64_t>(index_.examples.size())},
                           .ignored_label = ignored_label,
                           .packing = packing,
                           .seed = 3});
  }

 private:
  std::filesystem::path path_;
  ByteTokenizer tokenizer_;
  SftIndex index_;
};

struct Layout {
  int dp = 1, pp = 1, tp = 1;
  int zero_stage = 0;
};

Settings settings_of(ModelConfig model, const Layout& layout) {
  model.vocab_size = 257;  // that no rank's part divides
  model.max_seq_len = seq_len;
  Settings settings = parity_settings(model, layout.dp, {1, 1}, 2 / layout.dp, 4);
  settings.seq_len = seq_len;
  settings.grid.tp = layout.tp;
  settings.zero_stage = layout.zero_stage;
  settings.unit_min_parameters = 1;
  settings.optimizer.lr.peak = 1e-3;
  set_pipeline(settings, {.schedule = ScheduleKind::one_f_one_b, .n_ranks = layout.pp});
  return settings;
}

Outcome run_on(const Examples& examples, bool packing, const Settings& settings) {
  World::Options options;
  options.train = [&](int) { return examples.samples(packing); };
  return World(settings, std::move(options)).run();
}

}  // namespace

TEST_CASE(
    "fine-tuning on masked prompts has one rank's bits in every layout, and near them under tp") {
  const Examples examples;
  for (const bool packing : {false, true}) {
    const ModelConfig model = packing ? parity_llama() : parity_gpt2(0.1f);
    const Outcome one = run_on(examples, packing, settings_of(model, {}));
    CHECK(one.losses.back() < one.losses.front());
    for (const Layout& layout : {Layout{.dp = 2}, Layout{.pp = 2}, Layout{.dp = 2, .zero_stage = 3},
                                 Layout{.dp = 2, .pp = 2, .zero_stage = 1}}) {
      INFO("packing " << packing << ", dp " << layout.dp << ", pp " << layout.pp);
      check_same(run_on(examples, packing, settings_of(model, layout)), one);
    }
    const Outcome split = run_on(examples, packing, settings_of(model, {.tp = 2}));
    CHECK(relative_distance(split.weights, one.weights) < 1e-5);
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(split.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
      CHECK(split.reports[i].n_valid == one.reports[i].n_valid);
    }
  }
}

TEST_CASE(
    "the loss of fine-tuning is the mean over answers' tokens, whatever microbatch they are in") {
  const Examples examples;
  Settings settings = settings_of(parity_gpt2(), {});
  settings.n_steps = 1;
  const Outcome outcome = run_on(examples, false, settings);
  const auto source = examples.samples(false);
  std::int64_t n_answers = 0;
  for (std::int64_t i = 0; i < settings.partition.global_batch(); ++i) {
    std::vector<std::int32_t> labels(seq_len);
    source->fetch(i, {.tokens = nullptr, .labels = labels.data()});
    for (const std::int32_t label : labels) n_answers += label == 'a' || label == 0 ? 1 : 0;
  }
  CHECK(outcome.reports[0].n_valid == n_answers);
  // Nearly uniform before the first step.
  CHECK(outcome.losses[0] == Approx(std::log(257.0)).epsilon(0.02));
}
