#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/data/bpe_tokenizer.h"
#include "src/data/splitter.h"

/// Megabytes a second on one core: the two splitting patterns by hand and by PCRE2, and whole
/// tokenizers. The text is this project's own: code, Markdown and, in the golden vectors, JSON.
///   tokenizer_bench PROJECT_ROOT [tokenizer.json ...]

namespace {

using Clock = std::chrono::steady_clock;

/// What the project's folders hold, again and again up to 8 MB.
std::string text_of(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (const char* const folder : {"src", "tensor", "actors", "schedules", "docs", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root + "/" + folder)) {
      const std::string extension = entry.path().extension().string();
      const bool is_text = extension == ".cpp" || extension == ".h" || extension == ".md" ||
                           extension == ".py" || extension == ".json";
      if (entry.is_regular_file() && is_text) paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  while (text.size() < 8'000'000) {
    for (const std::string& path : paths) text += llm::read_file(path);
  }
  return text;
}

/// The fastest of five.
template <class Work>
double rate_of(std::size_t n_bytes, Work work) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const Clock::time_point begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, static_cast<double>(n_bytes) * 1e-6 / seconds);
  }
  return best;
}

double split_rate(const std::string& text, const llm::Splitter& splitter) {
  std::vector<std::size_t> ends;
  return rate_of(text.size(), [&] {
    ends.clear();
    splitter.split(text, 0, ends);
  });
}

void print_tokenizer(const std::string& text, const std::string& path) {
  const llm::TokenizerFiles files = llm::read_tokenizer_files(path);
  const Clock::time_point begin = Clock::now();
  const llm::BpeTokenizer tokenizer(files);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::vector<std::int32_t> ids;
  const double rate = rate_of(text.size(), [&] {
    ids.clear();
    tokenizer.encode(text, ids);
  });
  std::string back;
  const double decode_rate = rate_of(text.size(), [&] {
    back.clear();
    tokenizer.decode(ids, back);
  });
  fmt::print(
      "{}: {} ids, opened in {:.0f} ms; encodes {:.0f} MB/s ({:.2f} bytes a token), decodes "
      "{:.0f} MB/s{}\n",
      std::filesystem::path(path).filename().string(), tokenizer.n_ids(), 1e3 * seconds, rate,
      static_cast<double>(text.size()) / static_cast<double>(ids.size()), decode_rate,
      back == text ? "" : "; THE TEXT DID NOT COME BACK");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string root = argv[1];
  const std::string text = text_of(root);
  for (const auto& [name, pattern] :
       {std::pair{"GPT-2", llm::gpt2_pattern}, std::pair{"Llama 3", llm::llama3_pattern}}) {
    const auto by_pcre2 = llm::make_splitter({fmt::format("(?:{})", pattern), false}, name);
    fmt::print("{}'s pattern splits {:.0f} MB/s by hand, {:.0f} MB/s by PCRE2\n", name,
               split_rate(text, *llm::make_scanner(pattern)), split_rate(text, *by_pcre2));
  }
  for (const char* const kind : {"gpt2", "llama3"}) {
    print_tokenizer(text, fmt::format("{}/tests/golden/tokenizer_{}.json", root, kind));
  }
  for (int i = 2; i < argc; ++i) print_tokenizer(text, argv[i]);
}
