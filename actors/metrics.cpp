#include "actors/metrics.h"

#include "src/rt/clock.h"

namespace llm {
namespace {

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

double mean_of(const LossReport& total) {
  return total.n_valid > 0 ? total.sum / static_cast<double>(total.n_valid) : 0;
}

RouterLosses mean_of(const RouterLosses& total, std::int64_t n) {
  if (n == 0) return {};
  return {total.balance / static_cast<double>(n), total.z / static_cast<double>(n)};
}

}  // namespace

Metrics::Metrics(Loop& loop, Plan plan, Outbox out)
    : plan_(plan),
      out_(std::move(out)),
      loss_(loop, WaitName("loss", "stage of every rank"), std::size_t{1} << 20),
      validation_loss_(loop, WaitName("validation_loss", "stage of every rank"),
                       std::size_t{1} << 20),
      router_losses_(loop, WaitName("router_losses", "stage of every rank"), std::size_t{1} << 20),
      step_report_(loop, WaitName("step_report", "optimizer_shard")) {}

Task<RouterLosses> Metrics::take_router_losses(std::int64_t step) {
  RouterLosses total;
  for (int rank = 0; rank < plan_.n_router_ranks; ++rank) {
    const RouterLosses part = co_await router_losses_.take(step * plan_.n_router_ranks + rank);
    total.balance += part.balance;
    total.z += part.z;
  }
  co_return total;
}

Task<> Metrics::run() {
  std::int64_t round = 0;
  std::int64_t begin_ns = now_ns();
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    LossReport total;
    for (int g = 0; g < plan_.n_global_microbatches; ++g) {
      const LossReport part = co_await loss_.take(step * plan_.n_global_microbatches + g);
      total.sum += part.sum;
      total.n_valid += part.n_valid;
    }
    const RouterLosses router = co_await take_router_losses(step);
    const StepReport report = co_await step_report_.take(step);
    CHECK_CONTRACT(report.n_valid == total.n_valid, "feed and head count the same valid tokens");
    const StepMetrics done{step, mean_of(total), seconds_since(begin_ns), report,
                           mean_of(router, total.n_valid * plan_.n_routers)};
    out_.step_done(step, done);
    if (report.stop) co_return;
    begin_ns = now_ns();
    if (!plan_.validation.due_after(step)) continue;

    const std::int64_t n = plan_.validation.n_microbatches();
    LossReport validation;
    for (std::int64_t i = 0; i < n; ++i) {
      const LossReport part = co_await validation_loss_.take(round * n + i);
      validation.sum += part.sum;
      validation.n_valid += part.n_valid;
    }
    ++round;
    const ValidationMetrics validated{step, mean_of(validation), validation.n_valid,
                                      seconds_since(begin_ns)};
    out_.validation_done(step, validated);
    begin_ns = now_ns();
  }
}

}  // namespace llm
