#include "src/config/checks.h"

#include <catch2/catch.hpp>

#include <numeric>

#include "tests/config/support.h"

namespace llm {

using test::load;
using test::refusal;

TEST_CASE("one rank runs under every strategy, more only under ddp") {
  for (const std::string strategy : {"ddp", "fsdp", "zero", "tp", "pp", "3d"}) {
    const LoadedConfig loaded = load("distributed: {parallel_strategy: " + strategy + "}");
    CHECK(refusal([&] { check_supported(loaded, 1); }) == "accepted");
    CHECK(refusal([&] { check_supported(loaded, 2); }) ==
          (strategy == "ddp" ? "accepted"
                             : "c.yaml:1:34: distributed.parallel_strategy: " + strategy +
                                   " on 2 ranks is not in this version; write parallel_strategy: "
                                   "ddp, or start one rank"));
  }
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
  const LoadedConfig tp = load("distributed: {parallel_strategy: tp, tp_size: 2}");
  CHECK(refusal([&] { check_supported(tp, 1); }) ==
        "c.yaml:1:47: distributed.tp_size: 2 does not divide the 1 rank of this run; start a "
        "multiple of 2 ranks or use 0");
  const LoadedConfig pp = load("distributed: {parallel_strategy: pp, pp_size: 4}");
  CHECK(refusal([&] { check_supported(pp, 6); }) ==
        "c.yaml:1:47: distributed.pp_size: 4 does not divide the 6 ranks of this run; start a "
        "multiple of 4 ranks or use 0");
  const LoadedConfig dp = load("distributed: {dp_size: 4}");
  CHECK(
      refusal([&] { check_supported(dp, 2); }) ==
      "c.yaml:1:24: distributed.dp_size: 4 data-parallel ranks, but this run has 2 ranks; start 4 "
      "or use 0");
  CHECK(refusal([&] { check_supported(dp, 4); }) == "accepted");
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
  CHECK(refusal([&] { check_task(data, "dpo"); }) ==
        "--task dpo: is not in this version; the tasks are lm and stream_lm");
  CHECK(refusal([&] { check_task(data, "steam_lm"); }) ==
        "--task steam_lm: unknown task; the tasks are lm and stream_lm; did you mean stream_lm?");
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
