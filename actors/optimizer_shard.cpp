#include "actors/optimizer_shard.h"

#include <fmt/format.h>

#include <cmath>

#include "src/base/error.h"
#include "src/comm/collective.h"
#include "src/rt/clock.h"
#include "src/rt/event.h"
#include "tensor/ops/adamw.h"

namespace llm {
namespace {

const WaitName wait_squares{"sums of squares"};
const WaitName wait_updated{"weights updated"};

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

OptimizerShard::OptimizerShard(Loop& loop, Queue& reductions, Queue& updates, Plan plan,
                               ModelState& state, SquareSums& squares, Outbox out)
    : loop_(loop),
      reductions_(reductions),
      updates_(updates),
      plan_(plan),
      state_(state),
      squares_(squares),
      out_(std::move(out)),
      // A rank that has finished a step tells of the one after the next.
      step_facts_(loop_, WaitName("step_facts", "data_feed of every rank"),
                  3 * static_cast<std::size_t>(plan_.n_ranks)),
      reduced_(loop_, WaitName("reduced", "gradient_reducer"), state_.layout().buckets.size()),
      state_copied_(loop_, WaitName("state copied", "checkpoint_writer")),
      n_updates_(plan_.n_updates) {
  if (plan_.config.loss_scale) loss_scale_.scale = plan_.config.loss_scale->initial;
  if (plan_.loss_scale) loss_scale_ = *plan_.loss_scale;
}

Task<> OptimizerShard::end_step(std::int64_t step, bool stop) {
  StepEnd end;
  end.step = step;
  end.save = plan_.saves.after(step, stop);
  end.is_validated = plan_.saves.is_validated(step, stop);
  end.is_last = stop || step + 1 == plan_.n_steps;
  if (!plan_.saves.enabled || (end.save == Save::never && !end.is_last)) co_return;
  end.n_updates = n_updates_;
  end.loss_scale = loss_scale_.scale;
  end.n_good_steps = loss_scale_.n_good_steps;
  end.begin_ns = now_ns();
  out_.step_end(n_ends_, end);
  co_await state_copied_.take(n_ends_++);
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
      squares_.enqueue(reductions_, static_cast<std::size_t>(b));
      state_.fetch_gradients(reductions_, static_cast<std::size_t>(b));
    }
    Event squared(loop_, wait_squares, step);
    reductions_.notify([&squared] { squared.set(); });
    co_await squared;

    const double sum = co_await squares_.total(step);
    report.loss_scale = loss_scale_.scale;
    const StepScale scale = step_scale(sum, report.n_valid, plan_.loss_scale_exponent,
                                       plan_.config.clip_norm, loss_scale_.scale);
    if (report.n_valid > 0) move_loss_scale(step, scale.skip);
    report.grad_norm = scale.grad_norm;
    report.lr = learning_rate(plan_.config.lr, n_updates_);
    report.skipped = scale.skip;
    std::optional<AdamwStep> adamw_step;
    if (!scale.skip) adamw_step = step_of(scale, report.lr);
    const ParametersUpdated next{report.stop, loss_scale_.scale};
    // From the last bucket to the first: the order of the next forward.
    for (std::int64_t b = n_buckets; b-- > 0;) {
      if (adamw_step) enqueue_update(*adamw_step, static_cast<std::size_t>(b));
      const std::int64_t key = step * n_buckets + b;
      updates_.notify([this, key, next] { out_.updated(key, next); });
    }
    Event updated(loop_, wait_updated, step);
    updates_.notify([&updated] { updated.set(); });
    co_await updated;
    report.n_updates = n_updates_;
    co_await end_step(step, report.stop);
    out_.step_report(step, report);
    out_.parameters_updated(step + 1, next);
    if (report.stop) co_return;
  }
}

AdamwStep OptimizerShard::step_of(const StepScale& scale, double lr) {
  const OptimizerConfig& c = plan_.config;
  return {static_cast<float>(lr),
          static_cast<float>(c.beta1),
          static_cast<float>(c.beta2),
          static_cast<float>(c.epsilon),
          static_cast<float>(c.weight_decay),
          ++n_updates_,
          static_cast<float>(scale.grad_scale)};
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

void OptimizerShard::enqueue_update(const AdamwStep& step, std::size_t bucket) {
  for (const OwnedPiece& piece : state_.shard().pieces[bucket]) {
    AdamwStep piece_step = step;
    piece_step.weight_decay = static_cast<float>(decay_of(piece.tensor));
    adamw(updates_, piece_step, state_.update_gradient(piece), state_.master(piece),
          state_.m(piece), state_.v(piece), state_.rounded(piece));
  }
}

}  // namespace llm
