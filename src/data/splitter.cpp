#include "src/data/splitter.h"

#include "src/base/range.h"
#include "src/data/pattern.h"

namespace llm {
namespace {

class PatternSplitter final : public Splitter {
 public:
  PatternSplitter(const SplitRule& rule, const std::string& place) : pattern_(rule, place) {}

  void split(std::string_view text, std::size_t offset,
             std::vector<std::size_t>& ends) const override {
    const std::size_t n_before = ends.size();
    cut_at(pattern_.find_all(text), ends);
    if (ends.size() == n_before || ends.back() != text.size()) ends.push_back(text.size());
    for (std::size_t i = n_before; i < ends.size(); ++i) ends[i] += offset;
  }

  std::size_t sure_end(std::string_view text) const override {
    constexpr int n_tries = 16;
    std::vector<std::size_t> sure;
    cut_at(pattern_.find_sure(text), sure);
    if (!sure.empty() && sure.back() == text.size()) sure.pop_back();
    for (int i = 0; i < n_tries && !sure.empty(); ++i) {
      // A pattern that looks ahead may have cut there because of what stands behind the end.
      std::vector<std::size_t> alone;
      split(text.substr(0, sure.back()), 0, alone);
      if (alone == sure) return sure.back();
      sure.pop_back();
    }
    return 0;
  }

 private:
  /// Appends the ends of matches and of what lies between.
  static void cut_at(const std::vector<Range>& matches, std::vector<std::size_t>& ends) {
    std::size_t last = 0;
    for (const Range& match : matches) {
      for (const std::int64_t at : {match.begin, match.end}) {
        if (static_cast<std::size_t>(at) <= last) continue;
        last = static_cast<std::size_t>(at);
        ends.push_back(last);
      }
    }
  }

  Pattern pattern_;
};

}  // namespace

std::unique_ptr<Splitter> make_splitter(const SplitRule& rule, const std::string& place) {
  if (!rule.is_literal) {
    if (std::unique_ptr<Splitter> scanner = make_scanner(rule.pattern)) return scanner;
  }
  return std::make_unique<PatternSplitter>(rule, place);
}

}  // namespace llm
