#include "src/trace/trace_file.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/rt/trace.h"

using namespace llm;

namespace {

/// A folder of traces that is gone with the test.
struct TraceFolder {
  TraceFolder()
      : path(std::filesystem::temp_directory_path() / fmt::format("llm-trace-test-{}", getpid())) {
    std::filesystem::create_directories(path);
  }
  ~TraceFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path file(int rank) const { return path / fmt::format("rank-{}.json", rank); }
  void write(int rank, int n_ranks, const std::string& run = "one") const {
    Trace trace(rank, 1'000'000);
    trace.describe("llm_train", fmt::format(R"({{"version":1,"run":"{}","rank":{},"n_ranks":{},)"
                                            R"("clock_uncertainty_us":{},"layout":"dp 1, pp 2",)"
                                            R"("grid":{{"dp":1,"pp":2,"tp":1}},"n_flushes":1,)"
                                            R"("pipeline":"F0 B0\nF0 B0\n","run_dir":"/r"}})",
                                            run, rank, n_ranks, rank * 1.5));
    trace.name_actor(0, "stage </script> \"quoted\"");
    trace.begin_steps(1'000'000);
    trace.slice(0, "compute", "F", 3, 2'000'000, 3'000'500);
    trace.wait(0, {.kind = "activation", .peer = "rank 1", .key = 4, .by = 7}, 1'500'000,
               1'900'000);
    trace.end_step(1, 4'000'000);
    trace.flow_begin(0, 0xFEDCBA9876543210, 2'500'000);
    trace.flow_end(0, 5, 2'600'000, true);
    trace.write(file(rank).string());
  }
  std::filesystem::path path;
};

void check_refused(const TraceFolder& folder, const std::string& why) {
  CHECK_THROWS_AS(read_timeline(folder.path), DataError);
  CHECK_THROWS_WITH(read_timeline(folder.path), Catch::Contains(why));
}

}  // namespace

TEST_CASE("what a rank's trace wrote is read back") {
  const TraceFolder folder;
  folder.write(0, 2);
  folder.write(1, 2);
  const Timeline timeline = read_timeline(folder.path);
  CHECK(timeline.run == "one");
  CHECK(timeline.layout == "dp 1, pp 2");
  CHECK(timeline.grid.pp == 2);
  CHECK(timeline.pipeline.n_ranks == 2);
  CHECK(timeline.run_dir == "/r");
  CHECK(timeline.clock_uncertainty_us() == Approx(1.5));
  REQUIRE(timeline.ranks.size() == 2);
  const RankTimeline& rank = timeline.ranks[1];
  CHECK(rank.row_name(0) == "stage </script> \"quoted\"");
  REQUIRE(rank.slices.size() == 3);
  CHECK(rank.slices[0].kind == SliceKind::step);
  CHECK(rank.slices[0].key == 1);
  CHECK(rank.slices[1].kind == SliceKind::wait);
  CHECK(rank.slices[1].by == 7);
  CHECK(timeline.name(rank.slices[1].peer) == "rank 1");
  CHECK(rank.slices[2].kind == SliceKind::compute);
  CHECK(rank.slices[2].by == -1);
  CHECK(rank.slices[2].begin_ns == 1'000'000);
  CHECK(rank.slices[2].end_ns == 2'000'500);
  REQUIRE(rank.flows.size() == 2);
  CHECK(rank.flows[0].id == 0xFEDCBA9876543210);
  CHECK(rank.flows[0].begins);
  CHECK(rank.flows[1].is_control);
}

TEST_CASE("a merged trace is one JSON file with the events of all ranks") {
  const TraceFolder folder;
  folder.write(0, 2);
  folder.write(1, 2);
  merge_traces(folder.path, folder.path / "trace.json");
  const auto json = nlohmann::json::parse(read_file(folder.path / "trace.json"));
  std::map<int, int> slices;
  for (const auto& event : json["traceEvents"])
    slices[event["pid"].get<int>()] += event["ph"] == "X";
  CHECK(slices == std::map<int, int>{{0, 3}, {1, 3}});
  CHECK(read_timeline(folder.path).ranks.size() == 2);  // a merged file is no rank's
}

TEST_CASE("a folder without traces, or not of all ranks, or of two runs is refused") {
  const TraceFolder folder;
  CHECK_THROWS_AS(read_timeline(folder.path), FileError);
  folder.write(0, 3);
  folder.write(1, 3);
  check_refused(folder, "has the traces of 2 ranks, and the run had 3");
  folder.write(0, 2);
  folder.write(1, 2, "another");
  check_refused(folder, "is of run another, and rank-0.json of run one");
  folder.write(0, 2);
  std::filesystem::copy_file(folder.file(0), folder.file(1),
                             std::filesystem::copy_options::overwrite_existing);
  check_refused(folder, "rank-1.json: is of rank 0");
}

TEST_CASE("a trace of fewer ranks than an older run left in the folder is refused") {
  const TraceFolder folder;
  folder.write(0, 1);
  folder.write(1, 2, "older");
  check_refused(folder, "rank-1.json: is of run older");
}

TEST_CASE("a file that is damaged, cut off or none of ours is refused with the reason") {
  const TraceFolder folder;
  folder.write(0, 1);
  const std::string whole = read_file(folder.file(0));
  const auto put = [&](const std::string& text) { std::ofstream(folder.file(0)) << text; };
  put(whole.substr(0, whole.size() - 20));
  check_refused(folder, "is cut off after");
  std::string damaged = whole;
  damaged[whole.find("\"ph\":\"X\"")] = '}';
  put(damaged);
  check_refused(folder, "is no JSON at byte");
  put("{\"traceEvents\":[]}");
  check_refused(folder, "is not a trace of llm-train");
  put("{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n\n]}\n");
  check_refused(folder, "says nothing of its run");
  std::string newer = whole;
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":9");
  put(newer);
  check_refused(folder, "has version 9, and this llm-trace reads 1");
}
