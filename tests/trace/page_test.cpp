#include "src/trace/page.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include "src/base/error.h"
#include "tests/trace/timelines.h"

using namespace llm;

namespace {

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

nlohmann::json data_of(const std::string& page) {
  return nlohmann::json::parse(
      between(page, R"(<script type="application/json" id="data">)", "</script>"));
}

/// The numbers of a column, by base64's description.
std::vector<unsigned char> bytes_of(const std::string& text) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes;
  REQUIRE(text.size() % 4 == 0);
  std::uint32_t held = 0;
  int n_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    held = held << 6 | static_cast<std::uint32_t>(digits.find(c));
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes.push_back(static_cast<unsigned char>(held >> n_bits & 0xFF));
  }
  return bytes;
}

TimelineMaker small_run() {
  TimelineMaker maker(2);
  maker.action(0, "F", 7, {1000, 2000});
  maker.awaited({.from = 0, .sent_us = 2000, .to = 1, .arrived_us = 2100}, "activation", 1000);
  maker.action(1, "B", 0, {2100, 3000});
  maker.step(0, 1, {1000, 3000});
  maker.step(1, 1, {1000, 3100});
  return maker;
}

struct PageFolder {
  PageFolder()
      : path(std::filesystem::temp_directory_path() / fmt::format("llm-page-{}", getpid())) {
    std::filesystem::create_directories(path);
  }
  ~PageFolder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
  }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("no name that a trace holds can end the page's script or name another place") {
  TimelineMaker maker = small_run();
  Timeline timeline = maker.made();
  const std::string evil =
      "</script><script src=http://example.invalid/x.js></script><!--\xE2\x80\xA8\xFF";
  timeline.layout = evil;
  timeline.ranks[0].rows[1].name = evil;
  for (std::string& name : timeline.names) name += evil;
  const std::string page = page_html(timeline, step_figures(timeline), {});
  std::size_t n_scripts = 0;
  for (std::size_t at = 0; (at = page.find("<script", at)) != std::string::npos; ++at) ++n_scripts;
  CHECK(n_scripts == 2);
  const nlohmann::json data = data_of(page);
  CHECK(data["layout"].get<std::string>().starts_with("</script><script src=http:"));
}

TEST_CASE("the page needs nothing from anywhere") {
  const Timeline timeline = small_run().made();
  const std::string page = page_html(timeline, step_figures(timeline), {});
  CHECK(page.find("http:") == std::string::npos);
  CHECK(page.find("https:") == std::string::npos);
  CHECK(page.find("url(") == std::string::npos);
  CHECK(page.find("@import") == std::string::npos);
  CHECK(page.find("default-src 'none'") != std::string::npos);
  CHECK(page.find("/* page.") == std::string::npos);
}

TEST_CASE("the page holds slices, messages, steps and paths in columns") {
  const Timeline timeline = small_run().made();
  const nlohmann::json data = data_of(page_html(timeline, step_figures(timeline), {}));
  CHECK(data["tick_ns"] == 1);
  const nlohmann::json& lane = data["ranks"][0]["lanes"][0];
  CHECK(lane["name"] == "stage");
  REQUIRE(lane["n"] == 1);
  CHECK(bytes_of(lane["begin"]) == std::vector<unsigned char>{0, 0, 0, 0});
  CHECK(bytes_of(lane["length"]) == std::vector<unsigned char>{0x40, 0x42, 0x0F, 0});  // 1 ms
  CHECK(bytes_of(lane["keys"]) == std::vector<unsigned char>{7, 0, 0, 0});
  CHECK(bytes_of(lane["categories"]) == std::vector<unsigned char>{0});
  CHECK(data["messages"]["n"] == 1);
  CHECK(bytes_of(data["messages"]["to"]) == std::vector<unsigned char>{1, 0});
  REQUIRE(data["steps"].size() == 1);
  CHECK(data["steps"][0]["ms"] == Approx(2.1));
  CHECK(data["steps"][0]["ranks"][1]["kinds"]["activation"] == Approx(1.1));
  CHECK(data["steps"][0]["path"].size() == 4);
}

TEST_CASE("losses are those of metrics.jsonl and of the starts that went on from it") {
  const PageFolder folder;
  CHECK(read_losses(folder.path).train.empty());
  CHECK(read_losses(folder.path / "nowhere").train.empty());
  folder.write("metrics.jsonl", R"({"kind":"step","step":1,"loss":3.5}
{"kind":"validation","step":1,"loss":3.25}
{"kind":"step","step":2,"loss":3}
{"kind":"checkpoint","step":2,"path":"p"}
{"kind":"step","step":3,"lo)");
  folder.write("metrics-from-step-00000001.jsonl", "{\"kind\":\"step\",\"step\":2,\"loss\":2.5}\n");
  const LossCurve losses = read_losses(folder.path);
  CHECK(losses.train == std::vector<std::pair<std::int64_t, double>>{{1, 3.5}, {2, 2.5}});
  CHECK(losses.validation == std::vector<std::pair<std::int64_t, double>>{{1, 3.25}});
  folder.write("metrics.jsonl", "step 1 loss 3\n{}\n");
  CHECK_THROWS_AS(read_losses(folder.path), DataError);
  CHECK_THROWS_WITH(read_losses(folder.path), Catch::Contains("metrics.jsonl:1: is no line"));
}
