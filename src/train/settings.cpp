#include "src/train/settings.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/model/parameters.h"

namespace llm {

void set_pipeline(Settings& settings, const PipelineChoice& choice) {
  const auto n = static_cast<int>(settings.partition.microbatch_samples.size());
  set_pipeline(
      settings,
      make_pipeline(choice.schedule,
                    {.n_ranks = choice.n_ranks, .n_chunks = choice.n_chunks, .n_microbatches = n}),
      choice.n_blocks);
  settings.schedule = choice.schedule;
}

void set_pipeline(Settings& settings, Pipeline pipeline,
                  const std::vector<std::int64_t>& n_blocks) {
  settings.grid.pp = pipeline.n_ranks;
  settings.stage_layers =
      n_blocks.empty()
          ? split_by_cost(layer_costs(settings.model, settings.seq_len), pipeline.n_stages())
          : split_by_hand(n_blocks);
  settings.pipeline = std::move(pipeline);
  settings.buffers = pipeline_buffers(settings.pipeline);
  settings.schedule.reset();
  check_pipeline(settings);
}

void check_pipeline(const Settings& settings) {
  const Pipeline& pipeline = settings.pipeline;
  const std::vector<Range>& layers = settings.stage_layers;
  CHECK_CONTRACT(pipeline.n_ranks == settings.grid.pp, "the pipeline is the grid's");
  CHECK_CONTRACT(pipeline.schedules.size() == static_cast<std::size_t>(pipeline.n_ranks),
                 "each rank of the pipeline has a schedule");
  CHECK_CONTRACT(static_cast<std::size_t>(pipeline.n_microbatches) ==
                     settings.partition.microbatch_samples.size(),
                 "a flush is an accumulation step");
  CHECK_CONTRACT(layers.size() == static_cast<std::size_t>(pipeline.n_stages()),
                 "each stage has layers");
  const Range all = all_layers(settings.model);
  CHECK_CONTRACT(layers.front().begin == all.begin && layers.back().end == all.end,
                 "the stages together are the model");
}

LayerCosts layer_costs(const ModelConfig& model, std::int64_t seq_len) {
  const auto c = static_cast<double>(model.hidden_size);
  ModelConfig one_block = model;
  one_block.n_layers = 1;
  const double head = 6 * c * static_cast<double>(model.vocab_size);
  const double block = flops_per_token(one_block, seq_len) - head;
  return {.embedding = 6 * c,
          .blocks = std::vector<double>(static_cast<std::size_t>(model.n_layers), block),
          .head = head};
}

void set_length(Settings& settings, const RunLength& length) {
  const std::int64_t batch = settings.partition.global_batch();
  std::int64_t n_steps = std::max<std::int64_t>(1, length.epochs * length.n_samples / batch);
  if (length.max_steps > 0) n_steps = std::min(n_steps, length.max_steps);
  settings.n_steps = n_steps;
  LrSchedule& lr = settings.optimizer.lr;
  lr.n_steps = n_steps;
  if (lr.decay_steps == wsd_tenth) lr.decay_steps = std::max<std::int64_t>(1, n_steps / 10);
  const std::int64_t epoch_steps = std::max<std::int64_t>(1, length.n_samples / batch);
  settings.validation = {
      .interval_steps = length.validation_interval > 0 ? length.validation_interval : epoch_steps,
      .n_steps = n_steps,
      .n_samples = length.n_validation_samples,
      .microbatch_samples = settings.partition.largest_microbatch()};
  settings.saves.n_steps = n_steps;
  settings.saves.validation = settings.validation;
}

}  // namespace llm
