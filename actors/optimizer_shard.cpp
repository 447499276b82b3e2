#include "actors/optimizer_shard.h"

#include <fmt/format.h>

#include <cmath>

#include "src/base/error.h"
#include "src/comm/collective.h"
#include "src/rt/event.h"
#include "tensor/ops/adamw.h"

namespace llm {
namespace {

const WaitName wait_squares{"sums of squares"};
const WaitName wait_updated{"weights updated"};

std::int64_t n_chunks(std::int64_t n_elements) {
  return (n_elements + norm_chunk_elements - 1) / norm_chunk_elements;
}

}  // namespace

StepScale step_scale(double sum_of_squares, std::int64_t n_valid, int exponent, double clip_norm,
                     double loss_scale) {
  StepScale scale;
  scale.skip = n_valid == 0 || !std::isfinite(sum_of_squares);
  if (n_valid == 0) return scale;
  const double to_mean = std::ldexp(1.0, exponent) / loss_scale / static_cast<double>(n_valid);
  scale.grad_norm = std::sqrt(sum_of_squares) * to_mean;
  scale.grad_scale = to_mean;
  if (clip_norm > 0 && scale.grad_norm > clip_norm) scale.grad_scale *= clip_norm / scale.grad_norm;
  return scale;
}

OptimizerShard::OptimizerShard(Group& pipeline, Queue& reductions, Queue& compute, Plan plan,
                               ModelState& state, Outbox out)
    : pipeline_(pipeline),
      loop_(pipeline.transport.loop()),
      reductions_(reductions),
      compute_(compute),
      plan_(std::move(plan)),
      state_(state),
      out_(std::move(out)),
      // A rank that has finished a step tells of the one after the next.
      step_facts_(loop_, WaitName("step_facts", "data_feed of every rank"),
                  3 * static_cast<std::size_t>(plan_.n_ranks)),
      reduced_(loop_, WaitName("reduced", "gradient_reducer"), state_.layout().buckets.size()) {
  std::int64_t total = 0;
  for (const ParameterSpec& spec : state_.specs()) {
    chunk_begin_.push_back(total);
    total += n_chunks(spec.n_elements());
  }
  chunk_sums_ = Storage(total * 8);
  CHECK_CONTRACT(
      plan_.parameters_by_rank.size() == pipeline_.ranks.size() &&
          plan_.parameters_by_rank[static_cast<std::size_t>(pipeline_.index)] == state_.canonical(),
      "the plan knows which rank owns which parameter");
  std::vector<std::int64_t> cuts{0};
  for (const auto& owned : plan_.parameters_by_rank) {
    cuts.push_back(cuts.back() + static_cast<std::int64_t>(owned.size()));
  }
  parameter_sums_ = Storage(cuts.back() * 8);
  gather_ = all_gather_plan(CollectiveForm::direct, {pipeline_.index, pipeline_.size(), cuts});
  if (plan_.config.loss_scale) loss_scale_.scale = plan_.config.loss_scale->initial;
}

void OptimizerShard::move_loss_scale(std::int64_t step, bool overflowed) {
  if (!plan_.config.loss_scale) return;
  if (overflowed && loss_scale_.at_minimum(*plan_.config.loss_scale)) {
    throw Error(ExitCode::internal,
                fmt::format("step {}: gradients overflow float16 at the least loss scale {} "
                            "(optimization.loss_scale_min); lower training.lr, or use "
                            "optimization.amp_dtype: bfloat16",
                            step + 1, loss_scale_.scale));
  }
  loss_scale_ = loss_scale_.after(*plan_.config.loss_scale, overflowed);
}

std::int64_t square_sum_bytes(const ModelConfig& config, const LayerRanges& ranges) {
  const std::vector<ParameterSpec> specs = parameters(config);
  auto total = static_cast<std::int64_t>(specs.size());
  for (const std::size_t i : owned_parameters(config, ranges)) {
    total += n_chunks(specs[i].n_elements());
  }
  return total * 8;
}

Task<double> OptimizerShard::sum_over_model(std::int64_t step) {
  const std::int64_t n = parameter_sums_.n_bytes() / 8;
  const MutView sums = parameter_sums_.view(Dtype::f64, {n});
  const double* chunk = chunk_sums_.view(Dtype::f64, {chunk_sums_.n_bytes() / 8}).as<double>();
  std::size_t own = 0;
  for (int rank = 0; rank < pipeline_.index; ++rank) {
    own += plan_.parameters_by_rank[static_cast<std::size_t>(rank)].size();
  }
  for (const ParameterSpec& spec : state_.specs()) {
    double sum = 0;
    for (std::int64_t i = n_chunks(spec.n_elements()); i > 0; --i) sum += *chunk++;
    sums.as<double>()[own++] = sum;
  }
  const CollectiveId id(plan_.squares_tag, step, 0);
  co_await all_gather(pipeline_, gather_, id, sums);
  std::vector<double> by_parameter(static_cast<std::size_t>(n));
  const double* sum = sums.as<double>();
  for (const std::vector<std::size_t>& owned : plan_.parameters_by_rank) {
    for (const std::size_t i : owned) by_parameter[i] = *sum++;
  }
  double total = 0;
  for (const double of_parameter : by_parameter) total += of_parameter;
  co_return total;
}

Task<> OptimizerShard::run() {
  const std::vector<Bucket>& buckets = state_.layout().buckets;
  const auto n_buckets = static_cast<std::int64_t>(buckets.size());
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    StepReport report;
    for (int rank = 0; rank < plan_.n_ranks; ++rank) {
      const StepFacts facts = co_await step_facts_.take(step * plan_.n_ranks + rank);
      report.n_valid += facts.n_valid;
      report.stop |= facts.stop_requested != 0;
    }
    for (std::int64_t b = 0; b < n_buckets; ++b) {
      co_await reduced_.take(step * n_buckets + b);
      enqueue_squares(buckets[static_cast<std::size_t>(b)]);
    }
    Event squared(loop_, wait_squares, step);
    reductions_.notify([&squared] { squared.set(); });
    co_await squared;

    const double sum = co_await sum_over_model(step);
    report.loss_scale = loss_scale_.scale;
    const StepScale scale = step_scale(sum, report.n_valid, plan_.loss_scale_exponent,
                                       plan_.config.clip_norm, loss_scale_.scale);
    if (report.n_valid > 0) move_loss_scale(step, scale.skip);
    report.grad_norm = scale.grad_norm;
    report.lr = learning_rate(plan_.config.lr, n_updates_);
    report.skipped = scale.skip;
    if (!scale.skip) {
      const OptimizerConfig& c = plan_.config;
      const AdamwStep adamw_step{static_cast<float>(report.lr),       static_cast<float>(c.beta1),
                                 static_cast<float>(c.beta2),         static_cast<float>(c.epsilon),
                                 static_cast<float>(c.weight_decay),  ++n_updates_,
                                 static_cast<float>(scale.grad_scale)};
      for (const Bucket& bucket : buckets) enqueue_update(adamw_step, bucket);
    }
    Event updated(loop_, wait_updated, step);
    compute_.notify([&updated] { updated.set(); });
    co_await updated;
    report.n_updates = n_updates_;
    out_.step_report(step, report);
    const ParametersUpdated next{report.stop, loss_scale_.scale};
    out_.parameters_updated(step + 1, next);
    if (report.stop) co_return;
  }
}

void OptimizerShard::enqueue_squares(const Bucket& bucket) {
  const MutView sums = chunk_sums_.view(Dtype::f64, {chunk_sums_.n_bytes() / 8});
  for (const BucketPiece& piece : bucket.pieces) {
    const std::int64_t first =
        chunk_begin_[state_.spec_of(piece.tensor)] + piece.elements.begin / norm_chunk_elements;
    const std::int64_t size = piece.elements.size();
    sum_of_squares(reductions_, part(state_.flat_gradients(0), piece.flat_begin, {size}),
                   part(sums, first, {n_chunks(size)}));
  }
}

double OptimizerShard::decay_of(std::int64_t tensor) const {
  switch (state_.specs()[state_.spec_of(tensor)].decay) {
    case DecayGroup::matrix:
      return plan_.config.weight_decay;
    case DecayGroup::embedding:
      return plan_.config.decay_embeddings ? plan_.config.weight_decay : 0;
    case DecayGroup::vector:
      return 0;
  }
  return 0;
}

void OptimizerShard::enqueue_update(const AdamwStep& step, const Bucket& bucket) {
  for (const BucketPiece& piece : bucket.pieces) {
    AdamwStep piece_step = step;
    piece_step.weight_decay = static_cast<float>(decay_of(piece.tensor));
    const auto range = [&](const MutView& flat) {
      return part(flat, piece.flat_begin, {piece.elements.size()});
    };
    adamw(compute_, piece_step, range(state_.flat_gradients(0)), range(state_.flat_values()),
          range(state_.flat_m()), range(state_.flat_v()),
          state_.flat_copy().empty() ? MutView() : range(state_.flat_copy()));
  }
}

}  // namespace llm
