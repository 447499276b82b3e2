#include "src/train/plan_report.h"
#include "src/train/unit_report.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "tensor/ops/scratch.h"
#include "tensor/storage.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Of what a rank's Storages hold; ops' scratch is counted apart.
std::int64_t planned_bytes(const Settings& settings, int rank) {
  std::int64_t total = 0;
  for (const LedgerEntry& entry : memory_ledger(settings, rank)) {
    total += entry.kind == LedgerKind::threads ? 0 : entry.n_bytes;
  }
  return total;
}

std::int64_t planned_scratch(const Settings& settings) {
  std::int64_t total = 0;
  for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
    for (const LedgerEntry& entry : memory_ledger(settings, rank)) {
      total += entry.kind == LedgerKind::threads ? entry.n_bytes : 0;
    }
  }
  return total;
}

std::int64_t planned_bytes_of_all(const Settings& settings) {
  std::int64_t total = 0;
  for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) total += planned_bytes(settings, rank);
  return total;
}

World::Options random_run(const Settings& settings) {
  World::Options options;
  options.train = [&](int) {
    return std::make_unique<RandomSamples>(1, settings.model.vocab_size, settings.seq_len);
  };
  if (settings.validation.n_samples > 0) options.validation = options.train;
  return options;
}

/// The same on ranks that share each layer, also in pipelines and with ZeRO.
void add_tensor_parallel(Settings tensor, std::vector<Settings>& all) {
  tensor.shares_memory = false;
  for (const int tp : {2, 4}) {
    tensor.grid.tp = tp;
    tensor.sequence_parallel = false;
    all.push_back(tensor);
    tensor.sequence_parallel = true;
    all.push_back(tensor);
    tensor.zero_stage = tp == 2 ? 3 : 1;
    tensor.model.compute = tp == 2 ? Dtype::f32 : Dtype::bf16;
    tensor.recompute_blocks = tp == 4;
    tensor.model.n_layers = 4;
    tensor.grid.pp = 2;
    set_pipeline(tensor, {.schedule = ScheduleKind::one_f_one_b, .n_ranks = 2});
    all.push_back(tensor);
    for (const int pp : {1, 2}) {
      set_pipeline(tensor, {.schedule = ScheduleKind::one_f_one_b_pairs, .n_ranks = pp});
      all.push_back(tensor);
    }
    Settings shared = tensor;
    shared.zero_stage = 3;
    all.push_back(shared);
    tensor.grid.pp = 1;
    set_pipeline(tensor);
  }
}

/// The same with a mixture's experts over the data-parallel ranks.
void add_spread_experts(Settings spread, std::vector<Settings>& all) {
  if (!spread.model.is_mixture() || spread.grid.dp != 2) return;
  spread.spreads_experts = true;
  for (const bool shares_memory : {false, true}) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      spread.shares_memory = shares_memory;
      spread.zero_stage = zero_stage;
      spread.recompute_blocks = zero_stage == 1;
      spread.model.compute = zero_stage == 2 ? Dtype::bf16 : Dtype::f32;
      spread.grid.tp = zero_stage == 1 && !shares_memory ? 2 : 1;
      spread.model.n_layers = 2;
      set_pipeline(spread);
      all.push_back(spread);
      spread.model.n_layers = 4;
      set_pipeline(spread, {.schedule = ScheduleKind::zero_bubble, .n_ranks = 2});
      spread.model.top_k = spread.model.n_experts;  // all are visited alike
      all.push_back(spread);
      spread.model.top_k = 2;
    }
  }
}

/// Settings of many kinds: families, ties, positions, cuts of the batch, buckets, lanes.
std::vector<Settings> many_settings() {
  std::vector<Settings> all;
  for (const int dp : {1, 2, 3, 4, 8}) {
    for (ModelConfig model : {parity_gpt2(0.1f), parity_llama(), parity_mixtral(0.1f)}) {
      Settings settings = parity_settings(model, dp, {1}, 1, 2);
      all.push_back(settings);
      settings.partition.microbatch_samples = {3, 3, 2};
      settings.partition.n_accumulation_steps = 3;
      set_pipeline(settings);
      settings.validation = {
          .interval_steps = 1, .n_steps = 2, .n_samples = 7, .microbatch_samples = 3};
      settings.bucket_bytes = 4;
      settings.n_reducer_lanes = 3;
      all.push_back(settings);
      settings.model.tie_embeddings = !model.tie_embeddings;
      settings.model.positions = Positions::sinusoidal;
      settings.model.vocab_size = 300;  // more than a chunk
      settings.accumulation = Accumulation::sequential;
      settings.bucket_bytes = 20000;
      set_pipeline(settings);
      all.push_back(settings);
      settings.shares_memory = true;
      all.push_back(settings);
      settings.shares_memory = dp > 1;
      settings.zero_stage = 1;
      all.push_back(settings);
      settings.model.compute = Dtype::bf16;
      settings.shares_memory = false;
      all.push_back(settings);
      settings.zero_stage = 2;
      settings.bucket_bytes = 1 << 20;
      all.push_back(settings);
      settings.zero_stage = 3;
      all.push_back(settings);
      settings.model.compute = Dtype::f32;
      settings.unit_min_parameters = 1;
      settings.gather_policy = {.n_ahead = 2, .reshard = true};
      all.push_back(settings);
      settings.gather_policy = {.n_ahead = 0, .reshard = false};
      settings.bucket_bytes = 9000;
      all.push_back(settings);
      settings.model.compute = Dtype::f32;
      settings.shares_memory = dp > 1;
      settings.zero_stage = 0;
      if (dp > 2) continue;
      add_tensor_parallel(settings, all);
      add_spread_experts(settings, all);
      for (const ScheduleKind kind :
           {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
        settings.model.n_layers = 4;
        settings.grid.pp = 3;
        set_pipeline(settings, {.schedule = kind, .n_ranks = 3});
        all.push_back(settings);
        settings.recompute_blocks = true;
        settings.accumulation = Accumulation::tree;
        settings.model.compute = Dtype::bf16;
        all.push_back(settings);
        settings.zero_stage = 3;
        settings.gather_policy = {.n_ahead = 1, .reshard = true};
        all.push_back(settings);
        settings.zero_stage = 0;
        settings.model.compute = Dtype::f32;
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("the plan's bytes of a rank are what its actors hold, to the byte") {
  GridCells cells("memory of plans", 7);
  for (const Settings& settings : many_settings()) {
    if (!cells.takes_next()) continue;
    INFO(plan_text(settings, 1));
    const std::int64_t before = storage_bytes_in_use();
    const std::int64_t scratch_before = op_scratch_bytes();
    restart_op_scratch_peak();
    {
      World world(settings, random_run(settings));
      world.run();
      CHECK(storage_bytes_in_use() - before == planned_bytes_of_all(settings));
      CHECK(op_scratch_peak_bytes() - scratch_before <= planned_scratch(settings));
    }
    CHECK(storage_bytes_in_use() == before);
  }
}

TEST_CASE("no rank holds more than the last, whose bytes the plan's text shows") {
  for (const Settings& settings : many_settings()) {
    if (settings.grid.pp > 1 || settings.zero_stage > 0) continue;  // pieces are not equal
    for (int rank = 0; rank < settings.grid.dp; ++rank) {
      CHECK(planned_bytes(settings, rank) <= planned_bytes(settings, settings.grid.dp - 1));
    }
  }
}

TEST_CASE("the plan's messages and bytes of a step are what each rank sends") {
  GridCells cells("traffic of plans", 7);
  for (Settings settings : many_settings()) {
    if (!cells.takes_next()) continue;
    settings.validation = {};
    World world(settings, random_run(settings));
    world.run();
    for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
      INFO("rank " << rank << " of\n" << plan_text(settings, 1));
      const StepTraffic traffic = step_traffic(settings, rank);
      CHECK(world.counts(rank).messages_sent ==
            traffic.n_start_messages + settings.n_steps * traffic.n_tensor_messages);
      const std::int64_t handles =
          traffic.n_start_messages * static_cast<std::int64_t>(sizeof(SharedHandle));
      if (!settings.spreads_experts || settings.model.top_k == settings.model.n_experts) {
        CHECK(world.counts(rank).bytes_sent == handles + settings.n_steps * traffic.n_bytes);
      }
      CHECK(world.counts(rank).control_sent == settings.n_steps * traffic.n_control_messages);
    }
  }
}

TEST_CASE("the plan shows what sharing out saves, and moments are a rank's part of it") {
  Settings settings = parity_settings(parity_gpt2(), 4, {1}, 1, 1);
  settings.model.compute = Dtype::bf16;
  settings.bucket_bytes = 1 << 20;
  set_pipeline(settings);
  settings.zero_stage = 1;
  const std::string text = plan_text(settings, 1);
  CHECK(text.find("zero_stage        weights") != std::string::npos);
  CHECK(text.find("AdamW moments of 1/4") != std::string::npos);
  CHECK(text.find("masters (f32) of 1/4") != std::string::npos);
  const auto state_bytes = [&](int zero_stage) {
    settings.zero_stage = zero_stage;
    std::int64_t most = 0;
    for (int rank = 0; rank < 4; ++rank) {
      std::int64_t bytes = 0;
      for (const LedgerEntry& entry : memory_ledger(settings, rank)) {
        const bool is_state =
            entry.kind == LedgerKind::moments || entry.what.find("masters") != std::string::npos;
        bytes += is_state ? entry.n_bytes : 0;
      }
      most = std::max(most, bytes);
    }
    return static_cast<double>(most);
  };
  // Tensors here are of a chunk or less: pieces are as equal as whole tensors allow.
  CHECK(state_bytes(1) < 0.4 * state_bytes(0));
  CHECK(state_bytes(2) == state_bytes(1));
}

TEST_CASE(
    "the plan ends with the least sharing that fits a node's memory, or says what else helps") {
  Settings settings = parity_settings(parity_gpt2(), 4, {1}, 1, 1);
  const auto last_line = [&](std::int64_t node_bytes) {
    const std::string text = plan_text(settings, 2, node_bytes);
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  CHECK(last_line(64 << 20) ==
        "memory   64.00 MiB on a node, 32.00 MiB for each of its 2 ranks: zero_stage 0 fits\n");
  std::int64_t plain = 0;
  for (const LedgerEntry& entry : memory_ledger(settings, 3)) plain += entry.n_bytes;
  CHECK(last_line(2 * plain).ends_with("ranks: zero_stage 0 fits\n"));
  CHECK(last_line(2 * plain - 2).ends_with("ranks: zero_stage 1 fits\n"));
  // One unit would be the whole model beside a rank's part of it.
  settings.model.n_layers = 12;
  set_pipeline(settings);
  Settings by_block = settings;
  by_block.zero_stage = 3;
  by_block.unit_min_parameters = 2224;
  std::int64_t least = 0;
  for (const LedgerEntry& entry : memory_ledger(by_block, 3)) least += entry.n_bytes;
  CHECK(last_line(2 * least).ends_with(
      "ranks: zero_stage 3 with fsdp_auto_wrap_min_params: 2224 fits\n"));
  CHECK(last_line(1 << 16).find("no zero_stage fits; lower training.batch_size") !=
        std::string::npos);
}

TEST_CASE("a reduction sends 2 (D - 1) / D of the gradient, whatever the cut of the buckets") {
  for (const int dp : {1, 2, 3, 4, 8}) {
    Settings settings = parity_settings(parity_llama(), dp, {1}, 1, 1);
    const std::int64_t n = model_layout(settings.model, 4).n_elements;
    for (const std::int64_t bucket_bytes : {4, 9000, 1 << 20}) {
      settings.bucket_bytes = bucket_bytes;
      std::int64_t n_bytes = 0;
      for (int rank = 0; rank < dp; ++rank) n_bytes += step_traffic(settings, rank).n_bytes;
      CHECK(n_bytes == 2 * (dp - 1) * n * 4);
    }
  }
}

TEST_CASE("stage 3 sends (D - 1) / D of the gradient and of each gather of a unit") {
  for (const bool tied : {true, false}) {
    for (const int dp : {2, 3, 5}) {
      ModelConfig model = parity_gpt2();
      model.tie_embeddings = tied;
      Settings settings = parity_settings(model, dp, {1}, 1, 1);
      settings.zero_stage = 3;
      settings.unit_min_parameters = 1;
      const auto sent = [&] {
        std::int64_t n_bytes = 0;
        for (int rank = 0; rank < dp; ++rank) {
          n_bytes += step_traffic(settings, rank).n_bytes;
        }
        std::int64_t n_chunks = 0;  // of the norm, as f64 to each other rank
        for (const ParameterSpec& spec : parameters(model)) {
          n_chunks += (spec.n_elements() + norm_chunk_elements - 1) / norm_chunk_elements;
        }
        return n_bytes - (dp - 1) * n_chunks * 8;
      };
      const std::int64_t all = model_layout(model, 4).n_elements * 4;
      const auto bytes_of = [&](std::int64_t layer) {
        std::int64_t n_bytes = 0;
        for (const ParameterSpec& spec : parameters(model)) {
          if (spec.layer == layer) n_bytes += Arena::bytes_for(Dtype::f32, {spec.n_elements()});
        }
        return n_bytes;
      };
      // A unit goes round for the forward and for the backward, but for what stays between the
      // two: the embedding is read in one of them unless it is the head's too, and the head is.
      const std::int64_t once = tied ? bytes_of(2) : bytes_of(-1) + bytes_of(2);
      INFO("dp " << dp << (tied ? ", tied" : ""));
      CHECK(sent() == (dp - 1) * (all + 2 * all - once));
      settings.gather_policy.reshard = false;
      CHECK(sent() == (dp - 1) * (all + all));
      settings.unit_min_parameters = 0;  // one unit stays from forward to backward
      settings.gather_policy.reshard = true;
      CHECK(sent() == (dp - 1) * (all + all));
    }
  }
}

TEST_CASE(
    "GPT-2 on four ranks: state and parameters of a rank are a quarter, and units in flight") {
  ModelConfig model = parity_gpt2();
  model.hidden_size = 768;
  model.n_layers = 12;
  model.n_heads = model.n_kv_heads = 12;
  model.intermediate_size = 3072;
  model.vocab_size = 50257;
  model.max_seq_len = 1024;
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    model.compute = compute;
    Settings settings = parity_settings(model, 4, {1}, 1, 1);
    settings.bucket_bytes = 4 << 20;
    const auto bytes_of = [&](int zero_stage, const char* what) {
      settings.zero_stage = zero_stage;
      std::int64_t most = 0;
      for (int rank = 0; rank < 4; ++rank) {
        std::int64_t n_bytes = 0;
        for (const LedgerEntry& entry : memory_ledger(settings, rank)) {
          if (entry.what.rfind(what, 0) == 0) n_bytes += entry.n_bytes;
        }
        most = std::max(most, n_bytes);
      }
      return static_cast<double>(most);
    };
    settings.unit_min_parameters = 7'000'000;
    for (const int zero_stage : {1, 2, 3}) {
      CHECK(bytes_of(zero_stage, "AdamW moments") <= 0.27 * bytes_of(0, "AdamW moments"));
      CHECK(bytes_of(zero_stage, "masters") <= 0.27 * bytes_of(0, "masters"));
    }
    const double in_flight = bytes_of(3, "parameters of units");
    CHECK(bytes_of(3, "parameters") - in_flight <= 0.27 * bytes_of(0, "parameters"));
    // The table, and two blocks in turn.
    const auto width = static_cast<double>(size_of(compute));
    CHECK(in_flight < 1.01 * width * (50257 * 768 + 1024 * 768 + 2 * 7.1e6));
  }
}

TEST_CASE("a unit of more than half of the model is warned about, with what makes blocks units") {
  ModelConfig model = parity_gpt2();
  model.n_layers = 8;
  Settings settings = parity_settings(model, 2, {1}, 1, 1);
  CHECK(unit_warning(settings).empty());
  CHECK(unit_line(settings).empty());
  settings.zero_stage = 3;
  settings.unit_min_parameters = 100000;
  CHECK(
      unit_warning(settings) ==
      "warning: distributed.fsdp_auto_wrap_min_params is 100000: one unit (embedding, blocks 0-7, "
      "final norm, head) has 18448 of the model's 18448 parameters, and every rank holds it whole "
      "while it is used; 2224 makes each block a unit");
  CHECK(unit_line(settings) ==
        "units: 1, the largest of 18448 parameters; 1 gathered ahead of use, given back after each "
        "use");
  settings.unit_min_parameters = 2224;
  CHECK(unit_warning(settings).empty());
  CHECK(plan_text(settings, 2)
            .find("  block 7                                            2224    ") !=
        std::string::npos);
  settings.gather_policy = {.n_ahead = 3, .reshard = false};
  CHECK(
      unit_line(settings) ==
      "units: 9, the largest of 2224 parameters; 3 gathered ahead of use, kept to the last use of "
      "a step");
  settings.model.vocab_size = 3000;
  set_pipeline(settings);
  CHECK(unit_warning(settings).ends_with("no value makes a smaller one of it"));
}

TEST_CASE("the plan's text has the grid, the batch, the buckets and the sum of the ledger") {
  Settings settings = parity_settings(parity_gpt2(), 4, {3, 3, 2}, 2, 7);
  const std::string text = plan_text(settings, 2);
  for (const char* const part :
       {"[dp 4][pp 1][tp 1]: 4 ranks on 2 nodes of 2",
        "global 64 samples = (3 + 3 + 2) x 2 accumulation steps x dp 4; 6 microbatches a rank, "
        "512 ",
        "F0 B0 F1 B1 F2 B2", "steps    7", "AdamW moments", "messages per step", "rank 3"}) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
}
