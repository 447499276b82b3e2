#include "src/config/checks.h"

#include <catch2/catch.hpp>

#include <numeric>

#include "tests/config/support.h"

namespace llm {

using test::load;
using test::refusal;

TEST_CASE("one and two ranks run under every strategy") {
  for (const std::string strategy : {"ddp", "fsdp", "zero", "tp", "pp", "3d"}) {
    const LoadedConfig loaded = load("distributed: {parallel_strategy: " + strategy + "}");
    CHECK(resolve_grid(loaded, 1) == RankGrid{1, 1, 1});
    const RankGrid expected = strategy == "tp"   ? RankGrid{1, 1, 2}
                              : strategy == "pp" ? RankGrid{1, 2, 1}
                                                 : RankGrid{2, 1, 1};
    CHECK(resolve_grid(loaded, 2) == expected);
  }
}

TEST_CASE("zero shares out optimizer state unless told more, and any grid can") {
  const auto stage = [](const std::string& fields) {
    return resolve_zero_stage(load("distributed: {" + fields + "}"));
  };
  CHECK(stage("parallel_strategy: ddp") == 0);
  CHECK(stage("parallel_strategy: zero") == 1);
  CHECK(stage("parallel_strategy: zero, zero_stage: 2") == 2);
  CHECK(stage("parallel_strategy: fsdp") == 3);
  CHECK(stage("parallel_strategy: fsdp, zero_stage: 3") == 3);
  CHECK(stage("parallel_strategy: pp, pp_size: 2, zero_stage: 3") == 3);
  CHECK(stage("parallel_strategy: ddp, zero_stage: 1") == 1);
  CHECK(stage("parallel_strategy: pp, pp_size: 2, zero_stage: 1") == 1);
  CHECK(refusal([&] { stage("parallel_strategy: zero, zero_stage: 0"); }) ==
        "c.yaml:1:52: distributed.zero_stage: 0 shares out nothing, but parallel_strategy is zero; "
        "write zero_stage: 1, or parallel_strategy: ddp");
  CHECK(refusal([&] { stage("parallel_strategy: fsdp, zero_stage: 1"); }) ==
        "c.yaml:1:52: distributed.zero_stage: 1 under parallel_strategy: fsdp, which is zero_stage "
        "3; remove the field, or write parallel_strategy: zero");
}

TEST_CASE("pipelines are all ranks, or pp_size of them, and data-parallel ranks are the rest") {
  const auto grid = [](const std::string& fields, std::int64_t n_ranks) {
    return resolve_grid(load("distributed: {parallel_strategy: " + fields + "}"), n_ranks);
  };
  CHECK(grid("ddp", 6) == RankGrid{6, 1, 1});
  CHECK(grid("ddp, pp_size: 1, tp_size: 1, dp_size: 6", 6) == RankGrid{6, 1, 1});
  CHECK(grid("pp", 6) == RankGrid{1, 6, 1});
  CHECK(grid("pp, pp_size: 6", 6) == RankGrid{1, 6, 1});
  CHECK(grid("pp, pp_size: 2", 6) == RankGrid{3, 2, 1});
  CHECK(grid("pp, pp_size: 1", 6) == RankGrid{6, 1, 1});
  CHECK(grid("pp, pp_size: 2, dp_size: 3", 6) == RankGrid{3, 2, 1});
  CHECK(grid("3d, pp_size: 3, dp_size: 2, tp_size: 1", 6) == RankGrid{2, 3, 1});
  CHECK(grid("3d", 6) == RankGrid{6, 1, 1});
  CHECK(grid("tp", 6) == RankGrid{1, 1, 6});
  CHECK(grid("tp, tp_size: 2", 6) == RankGrid{3, 1, 2});
  CHECK(grid("3d, pp_size: 2, tp_size: 3", 12) == RankGrid{2, 2, 3});
}

TEST_CASE("a process started alone for several ranks is refused with the line to type") {
  const std::vector<std::string> command = {"llm-train", "--config-path", "c.yaml",
                                            "logging.run_dir=my run"};
  const LoadedConfig two = load("distributed: {gpus_per_node: 2}");
  CHECK(
      refusal([&] { check_launch(two, 1, command); }) ==
      "c.yaml:1:30: distributed.gpus_per_node: 2 x num_nodes 1 is 2 ranks, but this process was "
      "started alone; start: mpirun -n 2 llm-train --config-path c.yaml 'logging.run_dir=my run'");
  CHECK(refusal([&] { check_launch(two, 2, command); }) == "accepted");
  const LoadedConfig nodes = load("distributed: {gpus_per_node: 4, num_nodes: 2}");
  CHECK(refusal([&] { check_launch(nodes, 1, {"llm-train"}); }) ==
        "c.yaml:1:30: distributed.gpus_per_node: 4 x num_nodes 2 is 8 ranks, but this process was "
        "started alone; start: mpirun -n 8 --map-by ppr:4:node llm-train");
  CHECK(refusal([&] { check_launch(load("distributed: {gpus_per_node: 1}"), 1, command); }) ==
        "accepted");
  CHECK(refusal([&] { check_launch(load("distributed: {num_nodes: 2}"), 1, command); }) ==
        "accepted");
}

TEST_CASE("grid sizes that do not fit the ranks are refused with both numbers") {
  const LoadedConfig rows = load(
      "{data: {max_seq_len: 3}, distributed: {parallel_strategy: tp, sequence_parallel: true}}");
  CHECK(refusal([&] { resolve_grid(rows, 4); }) ==
        "c.yaml:1:82: distributed.sequence_parallel: true cuts the tokens of a sample among 4 "
        "tensor-parallel ranks, but data.max_seq_len is 3; use false, or tp_size: 3 or less");
  const LoadedConfig tp = load("distributed: {parallel_strategy: tp, tp_size: 2}");
  CHECK(refusal([&] { resolve_grid(tp, 1); }) ==
        "c.yaml:1:47: distributed.tp_size: 2 does not divide the 1 rank of this run; start a "
        "multiple of 2 ranks or use 0");
  const LoadedConfig pp = load("distributed: {parallel_strategy: pp, pp_size: 4}");
  CHECK(refusal([&] { resolve_grid(pp, 6); }) ==
        "c.yaml:1:47: distributed.pp_size: 4 does not divide the 6 ranks of this run; start a "
        "multiple of 4 ranks or use 0");
  const LoadedConfig dp = load("distributed: {dp_size: 4}");
  CHECK(refusal([&] { resolve_grid(dp, 2); }) ==
        "c.yaml:1:24: distributed.dp_size: 4 x pp_size 1 x tp_size 1 is 4, but this run has 2 "
        "ranks; start 4 or use 0");
  CHECK(refusal([&] { resolve_grid(dp, 4); }) == "accepted");
  const LoadedConfig both = load("distributed: {parallel_strategy: pp, dp_size: 3, pp_size: 2}");
  CHECK(refusal([&] { resolve_grid(both, 4); }) ==
        "c.yaml:1:47: distributed.dp_size: 3 x pp_size 2 x tp_size 1 is 6, but this run has 4 "
        "ranks; start 6 or use 0");
  const LoadedConfig three = load("distributed: {parallel_strategy: 3d, pp_size: 2, tp_size: 2}");
  CHECK(
      refusal([&] { resolve_grid(three, 6); }) ==
      "c.yaml:1:59: distributed.tp_size: 2 x pp_size 2 is 4, which does not divide the 6 ranks of "
      "this run; start a multiple of 4 ranks");
}

namespace {

/// What resolve_pipeline says of a model of 6 blocks on `n_ranks` pipeline ranks.
std::string pipeline_refusal(const std::string& fields, std::int64_t n_ranks) {
  const LoadedConfig loaded =
      load("model: {num_layers: 6}\ndistributed: {parallel_strategy: pp, " + fields + "}");
  return refusal([&] { resolve_pipeline(loaded, n_ranks); });
}

}  // namespace

TEST_CASE("each schedule has its number of chunks, and a split its stages") {
  const auto resolved = [](const std::string& fields) {
    return resolve_pipeline(load("model: {num_layers: 6}\ndistributed: {" + fields + "}"), 3);
  };
  CHECK(resolved("pp_size: 0").n_chunks == 1);
  CHECK(resolved("pp_size: 0").schedule == "1f1b");
  CHECK(resolved("pp_schedule: interleaved, pp_virtual_stages: 2").n_chunks == 2);
  CHECK(resolved("pp_schedule: zero_bubble_v").n_chunks == 2);
  CHECK(resolved("pp_schedule: zero_bubble_v, pp_virtual_stages: 2").n_chunks == 2);
  CHECK(resolved("pp_schedule: \"file:a b.txt\"").n_chunks == 0);
  CHECK(resolved("pp_schedule: \"file:a b.txt\"").schedule == "file");
  CHECK(schedule_file(load("distributed: {pp_schedule: \"file:a b.txt\"}").config) == "a b.txt");
  CHECK(schedule_file(load("").config).empty());
  CHECK(resolved("pp_split: \"1,2, 3\"").n_blocks == std::vector<std::int64_t>{1, 2, 3});
  CHECK(resolved("pp_schedule: interleaved, pp_virtual_stages: 2, pp_split: \"1,1,1,1,1,1\"")
            .n_blocks.size() == 6);
}

TEST_CASE("chunks that a schedule does not have are refused") {
  const std::string chunks = "c.yaml:2:77: distributed.pp_virtual_stages: ";
  CHECK(pipeline_refusal("pp_schedule: gpipe, pp_virtual_stages: 2", 2) ==
        chunks +
            "2 does not go with pp_schedule gpipe; write pp_schedule: interleaved, or "
            "pp_virtual_stages: 1");
  CHECK(pipeline_refusal("pp_schedule: zero_bubble_v, pp_virtual_stages: 3", 2) ==
        "c.yaml:2:85: distributed.pp_virtual_stages: 3 does not go with pp_schedule "
        "zero_bubble_v; it has 2, which need not be written");
  CHECK(pipeline_refusal("pp_schedule: interleaved", 2) ==
        "c.yaml:2:51: distributed.pp_virtual_stages: 1 does not go with pp_schedule interleaved; "
        "write pp_virtual_stages: 2 or more, or pp_schedule: 1f1b");
}

TEST_CASE("more stages than blocks are refused with both numbers") {
  CHECK(pipeline_refusal("pp_schedule: 1f1b", 6) == "accepted");
  CHECK(pipeline_refusal("pp_size: 7", 7) ==
        "c.yaml:2:47: distributed.pp_size: 7 pipeline ranks need a block each, but "
        "model.num_layers is 6; use pp_size: 6 at most");
  CHECK(pipeline_refusal("pp_schedule: 1f1b", 7) ==
        "c.yaml:2:51: distributed.pp_size: 7 pipeline ranks need a block each, but "
        "model.num_layers is 6; use pp_size: 6 at most");
  CHECK(pipeline_refusal("pp_schedule: zero_bubble_v", 4) ==
        "c.yaml:2:51: distributed.pp_virtual_stages: 4 pipeline ranks with 2 chunks each, 8 stages "
        "need a block each, but model.num_layers is 6; use fewer ranks or another schedule");
  CHECK(pipeline_refusal("pp_schedule: interleaved, pp_virtual_stages: 4", 2) ==
        "c.yaml:2:83: distributed.pp_virtual_stages: 2 pipeline ranks with 4 chunks each, 8 stages "
        "need a block each, but model.num_layers is 6; use at most 3 chunks, fewer ranks or "
        "another schedule");
  const LoadedConfig file = load("model: {num_layers: 6}\ndistributed: {pp_schedule: file:a}");
  CHECK(refusal([&] { resolve_pipeline(file, 4); }) == "accepted");
  CHECK(refusal([&] { check_stages(file, 3, 2); }) == "accepted");
  CHECK_THAT(refusal([&] { check_stages(file, 4, 2); }),
             Catch::Contains("4 pipeline ranks with 2 chunks each, 8 stages"));
}

TEST_CASE("a split that is no split of this model is refused") {
  const std::string split = "c.yaml:2:48: distributed.pp_split: ";
  CHECK(pipeline_refusal("pp_split: \"2,4\"", 2) == "accepted");
  CHECK(pipeline_refusal("pp_split: 6", 1) == "accepted");
  CHECK(pipeline_refusal("pp_split: \"2,3\"", 2) ==
        split + "2,3 is 5 blocks, but model.num_layers is 6; write numbers that add up to 6");
  CHECK(pipeline_refusal("pp_split: \"2,4\"", 3) ==
        split +
            "2,4 has 2 stages, but there are 3 pipeline ranks; write 3 numbers, or remove the "
            "field");
  CHECK(pipeline_refusal("pp_split: \"6\"", 2) ==
        split +
            "6 has 1 stage, but there are 2 pipeline ranks; write 2 numbers, or remove the "
            "field");
  for (const std::string text : {"0,6", "-1,7", "2,,4", "2,4,", "two,4", "2;4", "06,0", ","}) {
    INFO(text);
    CHECK(pipeline_refusal("pp_split: \"" + text + "\"", 2) ==
          split + text +
              " is not a list of blocks, at least one for each stage; write one like "
              "\"3,4,4,1\"");
  }
}

TEST_CASE("a batch is cut into microbatches that add up and differ by one at most") {
  for (int n_samples = 1; n_samples <= 20; ++n_samples) {
    for (int n_parts = 1; n_parts <= n_samples; ++n_parts) {
      LoadedConfig loaded = load("");
      loaded.config.training.batch_size = n_samples;
      loaded.config.distributed.pp_n_microbatches = n_parts;
      const auto parts = resolve_batch(loaded, 1).microbatch_samples;
      CHECK(parts.size() == std::size_t(n_parts));
      CHECK(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) == n_samples);
      CHECK(std::is_sorted(parts.rbegin(), parts.rend()));
      CHECK(parts.front() - parts.back() <= 1);
    }
  }
  const BatchPlan plan =
      resolve_batch(load("training: {batch_size: 8}\ndistributed: {pp_n_microbatches: 3}\n"
                         "optimization: {gradient_accumulation_steps: 2}"),
                    4);
  CHECK(plan.microbatch_samples == std::vector<std::int64_t>{3, 3, 2});
  CHECK(plan.n_accumulation_steps == 2);
  CHECK(plan.n_microbatches == 6);
  CHECK(plan.global_batch_samples == 64);
}

TEST_CASE("accumulation steps follow from the global batch size") {
  const LoadedConfig loaded = load("training: {batch_size: 8, global_batch_size: 64}");
  CHECK(resolve_batch(loaded, 1).n_accumulation_steps == 8);
  CHECK(resolve_batch(loaded, 2).n_accumulation_steps == 4);
  CHECK(resolve_batch(loaded, 8).n_accumulation_steps == 1);
  CHECK(resolve_batch(loaded, 8).global_batch_samples == 64);
  CHECK(resolve_batch(load(""), 3).global_batch_samples == 384);
}

TEST_CASE("a global batch size that cannot be made is refused with all three numbers") {
  const LoadedConfig loaded = load("training: {batch_size: 8, global_batch_size: 64}");
  CHECK(refusal([&] { resolve_batch(loaded, 3); }) ==
        "c.yaml:1:46: training.global_batch_size: 64 is no multiple of training.batch_size 8 x 3 "
        "data-parallel ranks = 24; use 72, or another batch_size");
  CHECK(refusal([&] { resolve_batch(loaded, 16); }) ==
        "c.yaml:1:46: training.global_batch_size: 64 is no multiple of training.batch_size 8 x 16 "
        "data-parallel ranks = 128; use 128, or another batch_size");
  const LoadedConfig both = load(
      "training: {batch_size: 8, global_batch_size: 64}\n"
      "optimization: {gradient_accumulation_steps: 3}");
  CHECK(refusal([&] { resolve_batch(both, 2); }) ==
        "c.yaml:1:46: training.global_batch_size: 64 needs 4 accumulation steps of "
        "training.batch_size 8 x 2 data-parallel ranks, but "
        "optimization.gradient_accumulation_steps is 3; remove one");
  CHECK(resolve_batch(load("training: {batch_size: 8, global_batch_size: 48}\n"
                           "optimization: {gradient_accumulation_steps: 3}"),
                      2)
            .n_accumulation_steps == 3);
}

TEST_CASE("a vocabulary below the tokenizer's ids is refused with both numbers") {
  const LoadedConfig loaded = load("model: {vocab_size: 200}");
  CHECK(
      refusal([&] { check_vocabulary(loaded, 256); }) ==
      "c.yaml:1:21: model.vocab_size: 200 is less than the tokenizer's 256 ids; write vocab_size: "
      "256");
  CHECK(refusal([&] { check_vocabulary(loaded, 200); }) == "accepted");
}

TEST_CASE("a task says what it needs, and other tasks are refused by name") {
  const LoadedConfig bare = load("");
  const LoadedConfig data = load("data: {dataset_path: a}");
  CHECK(refusal([&] { check_task(bare, "lm"); }) ==
        "data.dataset_path: not set, but --task lm needs data; write data.dataset_path=FILES");
  CHECK(refusal([&] { check_task(data, "lm"); }) == "accepted");
  CHECK(refusal([&] { check_task(data, "stream_lm"); }) ==
        "data.steps_per_epoch: not set, but --task stream_lm does not know where its data ends; "
        "write data.steps_per_epoch=N or use --task lm");
  CHECK(refusal([&] {
          check_task(load("data: {dataset_path: a, steps_per_epoch: 3}"), "stream_lm");
        }) == "accepted");
  CHECK(refusal([&] { check_task(bare, "sft"); }) ==
        "data.dataset_path: not set, but --task sft needs data; write data.dataset_path=FILES");
  const LoadedConfig packing = load("data: {dataset_path: a, packing: true}");
  CHECK(refusal([&] { check_task(packing, "sft"); }) == "accepted");
  CHECK(refusal([&] { check_task(packing, "lm"); }) ==
        "c.yaml:1:34: data.packing: true, but samples of --task lm are full anyway; write --task "
        "sft, or remove it");
  CHECK(refusal([&] { check_task(data, "dpo"); }) ==
        "--task dpo: is not in this version; the tasks are lm, stream_lm and sft");
  CHECK(refusal([&] { check_task(data, "steam_lm"); }) ==
        "--task steam_lm: unknown task; the tasks are lm, stream_lm and sft; did you mean "
        "stream_lm?");
}

TEST_CASE("graphs change nothing on CPUs and under a trace, which a note says") {
  const auto notes = [](bool on_devices, bool is_traced) {
    LoadedConfig loaded = load("distributed: {cuda_graphs: true}\n");
    check_graphs(loaded, on_devices, is_traced);
    return loaded.notes;
  };
  CHECK(notes(true, false).empty());
  CHECK(notes(true, true) ==
        std::vector<std::string>{
            "c.yaml:1:28: distributed.cuda_graphs: a trace shows ops one by one; "
            "it changes nothing"});
  CHECK(
      notes(false, false) ==
      std::vector<std::string>{"c.yaml:1:28: distributed.cuda_graphs: ranks on CPUs have no device "
                               "to issue to; it changes nothing"});
  LoadedConfig without = load("distributed: {device: cpu}\n");
  check_graphs(without, false, false);
  CHECK(without.notes.empty());
}

TEST_CASE("offloading changes nothing on CPUs, and is refused where devices own experts") {
  const std::string yaml = "distributed: {parallel_strategy: fsdp, fsdp_cpu_offload: true}\n";
  LoadedConfig fsdp = load(yaml);
  check_offload(fsdp, true, false);
  CHECK(fsdp.notes.empty());
  check_offload(fsdp, false, true);
  REQUIRE(fsdp.notes.size() == 1);
  CHECK(fsdp.notes.front() ==
        "c.yaml:1:58: distributed.fsdp_cpu_offload: parameters of ranks on CPUs are in host memory "
        "already; it changes nothing");
  CHECK(refusal([&] { check_offload(fsdp, true, true); }) ==
        "c.yaml:1:58: distributed.fsdp_cpu_offload: true, but under expert_parallel: dp a rank's "
        "own experts are read where they are owned, on its device; write expert_parallel: none, or "
        "fsdp_cpu_offload: false");
  LoadedConfig ddp = load("distributed: {fsdp_cpu_offload: true}\n");
  const std::size_t n_notes = ddp.notes.size();  // says already that it has no effect
  check_offload(ddp, false, false);
  CHECK(ddp.notes.size() == n_notes);
}

TEST_CASE("NCCL adds up no gradients of ranks on CPUs") {
  const LoadedConfig nccl = load("distributed:\n  collectives: nccl\n");
  check_collectives(nccl, true);
  check_collectives(load(""), false);
  CHECK(
      refusal([&] { check_collectives(nccl, false); }) ==
      "c.yaml:2:16: distributed.collectives: nccl, but ranks compute on CPUs (distributed.device: "
      "auto), where NCCL adds nothing; write collectives: plan, or start on devices");
}

TEST_CASE("the backend follows the devices unless it is written") {
  CHECK(resolve_backend(load(""), 0) == "mpi");
  CHECK(resolve_backend(load(""), 2) == "nccl");
  CHECK(resolve_backend(load("distributed: {device: cpu}"), 2) == "mpi");
  CHECK(resolve_backend(load("distributed: {backend: gloo}"), 2) == "mpi");
  const LoadedConfig nccl = load("distributed:\n  backend: nccl\n");
  CHECK(resolve_backend(nccl, 1) == "nccl");
  CHECK(refusal([&] { resolve_backend(nccl, 0); }) ==
        "c.yaml:2:12: distributed.backend: nccl, but this rank sees 0 devices; write backend: mpi "
        "or remove the line");
  LoadedConfig cuda = load("");
  cuda.config.distributed.device = "cuda";
  CHECK(
      refusal([&] { resolve_backend(cuda, 0); }) ==
      "default: distributed.device: cuda, but this rank sees 0 devices; write device: cpu or auto");
}

}  // namespace llm
