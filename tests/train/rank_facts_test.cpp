#include "src/train/rank_facts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

RankFacts fact(const std::string& host, const std::string& cores = "0-3") {
  return {.host = host,
          .cores = cores,
          .n_cores = 4,
          .program = "aa-1",
          .config_file = "bb-2",
          .arguments = {"--config-path", "x.yaml"},
          .variables = {}};
}

std::string refusal(const std::vector<RankFacts>& facts) {
  std::vector<int> node_of;
  for (const RankFacts& one : facts) {
    const bool is_new = !node_of.empty() && one.host != facts[node_of.size() - 1].host;
    node_of.push_back((node_of.empty() ? 0 : node_of.back()) + (is_new ? 1 : 0));
  }
  try {
    check_alike(facts, node_of, "x.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

/// What check_nodes says of two nodes, of 2 ranks each, where the sources say this.
std::string nodes(const std::string& yaml, const std::map<std::string, std::string>& environment,
                  const std::vector<std::string>& overrides = {}) {
  const LoadedConfig loaded = load_config({.yaml_name = "x.yaml",
                                           .yaml_text = yaml,
                                           .environment = environment,
                                           .overrides = overrides});
  try {
    std::string text;
    for (const std::string& note : check_nodes(loaded, {0, 0, 1, 1})) {
      text += note;
    }
    return text;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("facts survive their way to rank 0") {
  RankFacts facts = fact("n0");
  facts.variables = {{"LLM_TRAINING__LR", "3e-4"}, {"NODE_RANK", "0"}};
  CHECK(facts_of(to_text(facts)) == facts);
  const RankFacts own = own_facts("", {"llm-train", "training.lr=1"});
  CHECK(facts_of(to_text(own)) == own);
  CHECK(own.program == own_facts("", {}).program);
  CHECK(own.arguments == std::vector<std::string>{"training.lr=1"});
  CHECK(own.config_file.empty());
  CHECK(own.n_cores > 0);
  RankFacts no_utf8 = fact("n0");
  no_utf8.arguments = {"\xff"};
  CHECK_NOTHROW(facts_of(to_text(no_utf8)));
}

TEST_CASE("ranks that were started alike are accepted, also where one cannot read the file") {
  CHECK(refusal({fact("n0")}) == "accepted");
  RankFacts blind = fact("n1");
  blind.config_file = "";
  CHECK(refusal({fact("n0"), fact("n0"), blind}) == "accepted");
}

TEST_CASE("another build is refused with its ranks, hosts and both fingerprints") {
  RankFacts other = fact("n1");
  other.program = "cc-3";
  CHECK(refusal({fact("n0"), fact("n0"), other, other}) ==
        "launch: ranks 2 (n1), 3 (n1) run another build of this program (cc-3) than rank 0 (n0: "
        "aa-1); start one file on all nodes, best from a folder that all of them see");
  CHECK_THAT(refusal({fact("n0"), other, other, other, other, other}),
             Catch::Contains("4 (n1) and 1 more run another build"));
}

TEST_CASE("another file or command line is refused with both sides") {
  RankFacts other = fact("n1");
  other.config_file = "dd-4";
  CHECK(refusal({fact("n0"), other}) ==
        "x.yaml: rank 1 (n1) reads another file there (dd-4) than rank 0 (n0: bb-2); copy one to "
        "all nodes, or put it where all of them see the same");
  other = fact("n1");
  other.arguments.push_back("training.lr=2");
  CHECK(refusal({fact("n0"), other}) ==
        "launch: rank 1 (n1) has 'training.lr=2' where rank 0 (n0) was started with nothing; start "
        "all ranks with one command line");
  other.arguments = {"--config-path", "y.yaml"};
  CHECK_THAT(refusal({fact("n0"), other}),
             Catch::Contains("has 'y.yaml' where rank 0 (n0)") && Catch::Contains("'x.yaml'"));
}

TEST_CASE("a variable counts as rank 0 has it: others may lack it, but not have another") {
  RankFacts zero = fact("n0"), other = fact("n1");
  zero.variables = {{"LLM_TRAINING__LR", "1"}};
  CHECK(refusal({zero, other}) == "accepted");  // mpirun hands variables on to its own node alone
  other.variables = {{"LLM_TRAINING__LR", "2"}};
  CHECK(refusal({zero, other}) ==
        "environment LLM_TRAINING__LR: '2' on rank 1 (n1), but '1' on rank 0 (n0), whose "
        "environment is the run's; set it alike on all nodes, or unset it on the others");
  other.variables = {{"BACKEND", "mpi"}};
  CHECK_THAT(refusal({zero, other}),
             Catch::Contains("environment BACKEND") && Catch::Contains("but not set on rank 0"));
  other.variables = {{"NODE_RANK", "1"}};
  CHECK(refusal({zero, other}) == "accepted");
}

TEST_CASE("what variables and the command line say of nodes is held against MPI's view") {
  CHECK(nodes("", {}).empty());
  CHECK(nodes("", {{"NUM_NODES", "2"}, {"GPUS_PER_NODE", "2"}}).empty());
  CHECK_THAT(
      nodes("", {{"NUM_NODES", "3"}}),
      Catch::Contains("environment NUM_NODES: distributed.num_nodes: 3, but MPI sees 2 nodes "
                      "of 2 ranks; unset it"));
  CHECK_THAT(nodes("", {{"GPUS_PER_NODE", "4"}}),
             Catch::Contains("distributed.gpus_per_node: 4, but MPI sees 2 nodes of 2 ranks"));
  CHECK_THAT(nodes("", {}, {"distributed.num_nodes=1", "distributed.gpus_per_node=1"}),
             Catch::Contains("command line"));
  // The guide's files work as they are printed.
  CHECK(nodes("distributed: {num_nodes: 4, gpus_per_node: 2}", {}) ==
        "x.yaml:1:26: distributed.num_nodes: 4, but MPI sees 2 nodes of 2 ranks, which counts");
}

TEST_CASE("a node's rank is MPI's") {
  RankFacts zero = fact("a"), one = fact("b");
  zero.variables = {{"NODE_RANK", "0"}};
  one.variables = {{"NODE_RANK", "1"}};
  CHECK(refusal({zero, one}) == "accepted");
  one.variables = {{"NODE_RANK", "0"}};
  CHECK(refusal({zero, one}) ==
        "environment NODE_RANK: 0 on b (rank 1), which is node 1 of 2 as MPI counts them from 0; "
        "unset it: the launcher knows the nodes");
}

TEST_CASE("neighbours that agree share a line of the table, and a large job's is cut") {
  CHECK(binding_table({fact("n0"), fact("n0"), fact("node-1", "0"), fact("node-1", "1")}) ==
        "ranks      node    cores  device\n"
        "0-1        n0      0-3    cpu\n"
        "2          node-1  0      cpu\n"
        "3          node-1  1      cpu");
  std::vector<RankFacts> many;
  for (int rank = 0; rank < 100; ++rank) many.push_back(fact("n0", std::to_string(rank)));
  const std::string text = binding_table(many, 3);
  CHECK_THAT(text, Catch::EndsWith("\nand 97 ranks more"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
}
