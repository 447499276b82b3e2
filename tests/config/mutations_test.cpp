#include <catch2/catch.hpp>

#include <random>

#include "src/config/table.h"
#include "tests/config/support.h"

namespace llm {
namespace {

const std::vector<std::string> pieces = {": ",
                                         "\n",
                                         "- ",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         "&a ",
                                         "*a",
                                         "!!int ",
                                         "!x ",
                                         "'",
                                         "\"",
                                         "#",
                                         "---\n",
                                         "...\n",
                                         "null",
                                         "~",
                                         "010",
                                         "1e999",
                                         "-1",
                                         "0",
                                         "99999999999999999999",
                                         "\xff",
                                         "\x80",
                                         "\xef\xbb\xbf",
                                         "\t",
                                         "  ",
                                         "<<: ",
                                         "? ",
                                         "|\n ",
                                         ">\n ",
                                         ".nan",
                                         ".inf",
                                         "true",
                                         "yes",
                                         "model:",
                                         "training:",
                                         "hidden_size: ",
                                         "lr: ",
                                         "%YAML 1.2\n",
                                         "\r\n",
                                         "\\x00",
                                         "1_0",
                                         "0x1F",
                                         "1.5",
                                         "dataset_path: "};

const std::vector<std::string> bases = {
    "",
    "model:\n  hidden_size: 64\n  num_heads: 4\n  use_glu: true\ntraining:\n  lr: 1e-3\n  seed: "
    "7\n",
    "data: {dataset_path: [a, b, \"c\"], max_seq_len: 64, shuffle: false}\n",
    "distributed:\n  gpus_per_node: 2  # comment\n  parallel_strategy: ddp\n  backend: nccl\n",
    "optimization:\n  use_amp: false\n  gradient_accumulation_steps: 2\nlogging:\n  progress: "
    "bar\n"};

/// The text with a few random edits: insertions of pieces, changed bytes, cuts and copies.
std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::size_t(random() % (n ? n : 1)); };
  const std::size_t n_edits = 1 + below(6);
  for (std::size_t i = 0; i < n_edits; ++i) {
    const std::size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
      case 1:
        text.insert(at, pieces[below(pieces.size())]);
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 3:
        text.erase(at, below(12));
        break;
      case 4: {
        const std::size_t from = below(text.size() + 1), n_bytes = below(40);
        text.insert(at, text.substr(from, n_bytes));
        break;
      }
    }
  }
  return text;
}

bool is_one_printable_line(const std::string& message) {
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20) return false;
  }
  return !message.empty();
}

}  // namespace

TEST_CASE("a mutated file either loads and reads back or is refused with one line and its place") {
  constexpr int n_inputs = 6000;
  constexpr unsigned seed = 20240229;
  std::mt19937 random(seed);
  int n_loaded = 0;
  for (int i = 0; i < n_inputs; ++i) {
    const std::string text = mutated(bases[std::size_t(i) % bases.size()], random);
    LoadedConfig loaded;
    try {
      loaded = test::load(text);
    } catch (const ConfigError& e) {
      INFO("seed " << seed << " input " << i << ":\n" << text << "\nmessage: " << e.what());
      REQUIRE(is_one_printable_line(e.what()));
      REQUIRE_THAT(e.what(), Catch::StartsWith("c.yaml:"));
      continue;
    }
    ++n_loaded;
    INFO("seed " << seed << " input " << i << ":\n" << text);
    REQUIRE(test::load(to_yaml(loaded)).config == loaded.config);
  }
  WARN(n_inputs << " mutated files, " << n_loaded << " of them loaded");
  CHECK(n_loaded > n_inputs / 20);
  CHECK(n_loaded < n_inputs);
}

TEST_CASE("random texts for each field from variables either load or are refused with one line") {
  constexpr unsigned seed = 7;
  std::mt19937 random(seed);
  int n_inputs = 0;
  for (const Field& field : all_fields()) {
    for (int i = 0; i < 20; ++i, ++n_inputs) {
      const std::string text = mutated(pieces[random() % pieces.size()], random);
      INFO(field.path() << " = " << text);
      try {
        const LoadedConfig loaded = load_config({.yaml_name = "c.yaml",
                                                 .yaml_text = "",
                                                 .environment = {},
                                                 .overrides = {field.path() + "=" + text}});
        CHECK(loaded.notes.size() <= 1);
      } catch (const ConfigError& e) {
        REQUIRE(is_one_printable_line(e.what()));
        REQUIRE_THAT(e.what(), Catch::StartsWith("command line: "));
      }
    }
  }
  WARN(n_inputs << " random overrides");
}

}  // namespace llm
