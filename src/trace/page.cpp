#include "src/trace/page.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include <fmt/format.h>
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/trace/page_data.h"

namespace llm {

extern const std::string_view page_template;
extern const std::string_view page_style;
extern const std::string_view page_script;

namespace {

using nlohmann::ordered_json;

/// What ends a text of HTML's can be in no string: names come from files.
std::string for_script(const ordered_json& json) {
  const std::string text = json.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

void replace(std::string& text, std::string_view mark, std::string_view by) {
  const std::size_t at = text.find(mark);
  CHECK_CONTRACT(at != std::string::npos, "the page has its marks");
  text.replace(at, mark.size(), by);
}

ordered_json points(const std::vector<std::pair<std::int64_t, double>>& curve) {
  ordered_json json = ordered_json::array();
  for (const auto& [step, loss] : curve) json.push_back({step, loss});
  return json;
}

void read_metrics(const std::filesystem::path& path, std::map<std::int64_t, double>& train,
                  std::map<std::int64_t, double>& validation) {
  const std::string text = read_file(path);
  std::size_t n_line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++n_line;
    const auto json =
        nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    const bool is_last = end + 1 >= text.size();  // a run that is going on may be in its middle
    if (!json.is_object() && !is_last) {
      throw DataError(fmt::format("{}:{}: is no line of metrics", path.string(), n_line));
    }
    const std::string kind = json.is_object() ? json.value("kind", "") : "";
    if (kind == "step" || kind == "validation") {
      (kind == "step" ? train : validation)[json.at("step")] = json.at("loss");
    }
    begin = end + 1;
  }
}

}  // namespace

LossCurve read_losses(const std::filesystem::path& run_dir) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(run_dir)) {
    for (const auto& entry : std::filesystem::directory_iterator(run_dir)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("metrics") && name.ends_with(".jsonl")) files.push_back(entry.path());
    }
  }
  // The first start's comes first, then those that went on, by their step.
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return std::pair(a.stem().string(), a.string()) < std::pair(b.stem().string(), b.string());
  });
  std::map<std::int64_t, double> train;
  std::map<std::int64_t, double> validation;
  for (const std::filesystem::path& file : files) read_metrics(file, train, validation);
  return {{train.begin(), train.end()}, {validation.begin(), validation.end()}};
}

std::string page_html(const Timeline& timeline, const std::vector<StepFigures>& steps,
                      const LossCurve& losses) {
  ordered_json data = page_data(timeline, steps);
  data["losses"] = {{"train", points(losses.train)}, {"validation", points(losses.validation)}};
  std::string page(page_template);
  replace(page, "/* page.css */", page_style);
  replace(page, "/* page.js */", page_script);
  replace(page, "{\"data\": \"here\"}", for_script(data));
  return page;
}

}  // namespace llm
