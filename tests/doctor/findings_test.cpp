#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "src/doctor/facts.h"

using namespace llm;

namespace {

/// A sound machine: so many nodes of two ranks with a core each, all pairs alike.
DoctorFacts sound(int n_nodes) {
  DoctorFacts facts;
  facts.mpi = "An MPI v1";
  facts.launcher = "mpirun";
  facts.folder = "/disk";
  facts.shares_memory = n_nodes == 1;
  for (int r = 0; r < 2 * n_nodes; ++r) {
    facts.ranks.push_back({.node = r / 2,
                           .host = "n" + std::to_string(r / 2),
                           .cores = {r % 2},
                           .f32_flops = 100e9,
                           .bf16_flops = 200e9,
                           .clock_ahead_seconds = 0.001,
                           .clock_uncertainty_seconds = 0.0001,
                           .disk_bytes_per_second = r % 2 == 0 ? 1e9 : 0,
                           .disk_sync_seconds = 0.001});
  }
  for (const auto& [a, b] : pairs_to_measure(2 * n_nodes)) {
    const bool is_near = a / 2 == b / 2;
    facts.pairs.push_back({a, b, is_near ? 1e-6 : 50e-6, is_near ? 10e9 : 1e9});
  }
  return facts;
}

DoctorFacts::Pair& pair_of(DoctorFacts& facts, int a, int b) {
  for (DoctorFacts::Pair& pair : facts.pairs) {
    if (pair.a == a && pair.b == b) return pair;
  }
  throw std::out_of_range("no such pair");
}

/// The one thing that is found.
Finding only_finding(const DoctorFacts& facts) {
  const std::vector<Finding> found = findings(facts);
  INFO(to_text(facts, found));
  REQUIRE(found.size() == 1);
  CHECK_FALSE(found[0].cure.empty());
  return found[0];
}

}  // namespace

TEST_CASE("nothing is found on a sound machine, of one rank, one node or several") {
  for (int n_nodes = 1; n_nodes <= 5; ++n_nodes) {
    const DoctorFacts facts = sound(n_nodes);
    CHECK(findings(facts).empty());
    CHECK(exit_code_of(findings(facts)) == 0);
    CHECK_THAT(to_text(facts, {}), Catch::Contains("nothing is wrong"));
  }
  DoctorFacts alone = sound(1);
  alone.ranks.resize(1);
  alone.pairs.clear();
  alone.shares_memory = false;
  CHECK(findings(alone).empty());
}

TEST_CASE("ranks that share a core are a wrong launch that names them") {
  DoctorFacts facts = sound(2);
  facts.ranks[3].cores = facts.ranks[2].cores;
  const Finding found = only_finding(facts);
  CHECK(found.kind == Finding::Kind::launch);
  CHECK(found.cause ==
        "ranks 2 and 3 of n1 share 1 core, and a rank that waits keeps its core from the others");
  CHECK(exit_code_of({found}) == 78);
}

TEST_CASE("ranks that nobody bound are fine while the node has a core for each") {
  DoctorFacts facts = sound(1);
  for (DoctorFacts::Rank& rank : facts.ranks) rank.cores = {0, 1};
  CHECK(findings(facts).empty());
  for (DoctorFacts::Rank& rank : facts.ranks) rank.cores = {0};
  facts.yields = true;
  CHECK(only_finding(facts).cause == "ranks 0 and 1 of n0 share 1 core");
}

TEST_CASE("a node with more ranks than cores is found where the sets overlap") {
  DoctorFacts facts = sound(1);
  facts.ranks.push_back(facts.ranks[1]);
  facts.ranks[0].cores = {0};
  facts.ranks[1].cores = {0, 1};
  facts.ranks[2].cores = {1};
  CHECK(only_finding(facts).cause == "node 0 has 3 ranks on 2 cores");
}

TEST_CASE("a link five times slower than the median of its kind is named with both hosts") {
  DoctorFacts facts = sound(3);
  SECTION("rate") {
    pair_of(facts, 1, 4).bytes_per_second = 0.15e9;
    const Finding found = only_finding(facts);
    CHECK(found.kind == Finding::Kind::machine);
    CHECK(found.cause == "ranks 1 (n0) and 4 (n2): 150 MB/s, 1000 MB/s at the median");
    CHECK(exit_code_of({found}) == 70);
  }
  SECTION("latency") {
    pair_of(facts, 0, 2).latency_seconds = 400e-6;
    CHECK(only_finding(facts).cause ==
          "ranks 0 (n0) and 2 (n1): a message takes 400.0 us, 50.0 us at the median");
  }
  SECTION("a pair within a node is held against pairs within nodes") {
    pair_of(facts, 0, 1).bytes_per_second = 1e9;
    CHECK_THAT(only_finding(facts).cause, Catch::StartsWith("ranks 0 (n0) and 1 (n0): 1000 MB/s"));
  }
  SECTION("what is four times slower is not") {
    pair_of(facts, 1, 4).bytes_per_second = 0.25e9;
    pair_of(facts, 0, 2).latency_seconds = 200e-6;
    CHECK(findings(facts).empty());
  }
}

TEST_CASE("ranks of one node that wait for cores show in their messages") {
  DoctorFacts facts = sound(1);
  facts.pairs[0].latency_seconds = 2e-3;
  CHECK(only_finding(facts).cause == "ranks of one node take 2000 us for a message");
}

TEST_CASE("a slow core, a wrong clock, a slow disk and memory apart are found") {
  DoctorFacts facts = sound(2);
  SECTION("core") {
    facts.ranks[2].f32_flops = 50e9;
    CHECK(only_finding(facts).cause ==
          "rank 2 (n1) multiplies at 50.0 GFLOP/s, 100.0 at the median");
  }
  SECTION("clock, once a node") {
    facts.ranks[2].clock_ahead_seconds = facts.ranks[3].clock_ahead_seconds = -90;
    CHECK(only_finding(facts).cause == "the clock of n1 is 90.0 s behind that of n0");
  }
  SECTION("disk") {
    facts.ranks[2].disk_bytes_per_second = 10e6;
    CHECK(only_finding(facts).cause ==
          "/disk on n1 takes 10.0 MB/s: a checkpoint of 1 GB needs 100 s");
  }
  SECTION("forcing") {
    facts.ranks[0].disk_sync_seconds = 2.5;
    CHECK_THAT(only_finding(facts).cause, Catch::Contains("2.5 s to force a small file"));
  }
}

TEST_CASE("ranks of one machine that do not see each other's memory are told") {
  DoctorFacts facts = sound(1);
  facts.shares_memory = false;
  CHECK_THAT(only_finding(facts).cause, Catch::Contains("cannot map each other's memory"));
}

TEST_CASE(
    "all pairs of few ranks are measured, and no more than 128 of many, with every rank's part") {
  for (int n = 1; n <= 8; ++n) {
    CHECK(pairs_to_measure(n).size() == static_cast<std::size_t>(n * (n - 1) / 2));
  }
  for (int n = 9; n <= 5000; n += 7) {
    std::set<std::pair<int, int>> seen;
    for (const auto& [a, b] : pairs_to_measure(n)) {
      CHECK((0 <= a && a < n && 0 <= b && b < n && a != b));
      seen.emplace(a, b);
    }
    CHECK(seen.size() == pairs_to_measure(n).size());
    CHECK(seen.size() <= 128);
  }
}

TEST_CASE("the JSON has what the table has") {
  DoctorFacts facts = sound(2);
  facts.ranks[3].cores = facts.ranks[2].cores;
  facts.reduces = {{65536, 1e-3, 2e-3}};
  const auto json = nlohmann::json::parse(to_json(facts, findings(facts)));
  CHECK(json["ranks"].size() == 4);
  CHECK(json["pairs"].size() == 6);
  CHECK(json["all_reduces"][0]["own_seconds"] == 1e-3);
  CHECK(json["findings"][0]["kind"] == "launch");
}
