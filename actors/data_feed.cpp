#include "actors/data_feed.h"

#include <algorithm>

#include "schedules/validation.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"

namespace llm {
namespace {

std::int64_t i32_bytes(std::int64_t n_elements) {
  return n_elements * 4;
}

std::int64_t rank_samples(const Partition& partition) {
  return partition.global_batch() / partition.dp;
}

std::int64_t two_steps(const DataFeed::Plan& plan, const SampleSource& source) {
  return 2 * rank_samples(plan.partition) * source.seq_len();
}

std::int64_t all_buffers(const ValidationFeed::Plan& plan, const SampleSource& source) {
  return plan.n_buffers * plan.microbatch_samples * source.seq_len();
}

SampleOut out_of(const MutView& tokens, const MutView& labels) {
  return {tokens.empty() ? nullptr : tokens.as<std::int32_t>(),
          labels.empty() ? nullptr : labels.as<std::int32_t>()};
}

/// Where a microbatch's ids lie.
struct IdRange {
  std::int64_t n;
  std::int64_t begin;
};

Microbatch microbatch_of(Range samples, IdRange ids, const TokenIds& tokens, const TokenIds& labels,
                         const Uploads& uploads) {
  if (uploads.queue != nullptr && uploads.queue->device() != Device::cpu) {
    check_tokens(tokens.here(ids.n, ids.begin), uploads.vocab_size);
    check_labels(labels.here(ids.n, ids.begin), uploads.vocab_size);
  }
  return {samples.begin, samples.size(), tokens.there(ids.n, ids.begin),
          labels.there(ids.n, ids.begin)};
}

}  // namespace

TokenIds::TokenIds(std::int64_t n, const Uploads& uploads) : uploads_(uploads) {
  const bool is_copied = uploads.queue != nullptr && uploads.queue->device() != Device::cpu;
  if (!is_copied) uploads_.queue = nullptr;
  here_ = is_copied ? Storage::pinned(i32_bytes(n)) : Storage(i32_bytes(n));
  if (is_copied) there_ = Storage(i32_bytes(n), uploads.queue->device());
}

MutView TokenIds::here(std::int64_t n, std::int64_t begin) const {
  return empty() ? MutView() : here_.view(Dtype::i32, {n}, i32_bytes(begin));
}

View TokenIds::there(std::int64_t n, std::int64_t begin) const {
  const MutView ids = here(n, begin);
  if (uploads_.queue == nullptr || ids.empty()) return ids;
  const MutView copied = there_.view(Dtype::i32, {n}, i32_bytes(begin));
  copy(*uploads_.queue, ids, copied);
  return copied;
}

DataFeed::DataFeed(Loop& loop, Plan plan, SampleSource& source,
                   std::function<bool()> stop_requested, Outbox out)
    : plan_(std::move(plan)),
      source_(source),
      stop_requested_(std::move(stop_requested)),
      out_(std::move(out)),
      parameters_updated_(loop, WaitName("parameters_updated", "optimizer_shard")),
      tokens_(plan_.has_tokens ? two_steps(plan_, source) : 0, plan_.uploads),
      labels_(plan_.has_labels ? two_steps(plan_, source) : 0, plan_.uploads) {}

Task<> DataFeed::run() {
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    feed(step);
    const ParametersUpdated before = co_await parameters_updated_.take(step);
    if (before.stop) co_return;
  }
}

std::string DataFeed::state_before(std::int64_t step) const {
  CHECK_CONTRACT(step >= fed_step_, "samples of an earlier step are not given out again");
  return step == fed_step_ ? state_before_ : source_.state();
}

void DataFeed::feed(std::int64_t step) {
  if (plan_.keeps_states) {
    state_before_ = source_.state();
    fed_step_ = step;
  }
  const Partition& partition = plan_.partition;
  const std::int64_t seq_len = source_.seq_len();
  const std::int64_t half = step % 2 * rank_samples(partition) * seq_len;
  const int first = plan_.dp_rank * partition.n_microbatches();
  const std::int64_t first_sample = partition.samples(first).begin;
  StepFacts facts;
  facts.stop_requested = stop_requested_() ? 1 : 0;
  for (int m = 0; m < partition.n_microbatches(); ++m) {
    const Range samples = partition.samples(first + m);
    const std::int64_t begin = half + (samples.begin - first_sample) * seq_len;
    const std::int64_t n_tokens = samples.size() * seq_len;
    const MutView tokens = tokens_.here(n_tokens, begin);
    const MutView labels = labels_.here(n_tokens, begin);
    const std::int64_t position = step * partition.global_batch() + samples.begin;
    if (plan_.has_tokens || plan_.has_labels) {
      fetch_batch(source_, {position, position + samples.size()}, out_of(tokens, labels));
    }
    if (plan_.has_labels && plan_.counts_labels) {
      const std::int32_t* const label = labels.as<std::int32_t>();
      facts.n_valid += n_tokens - std::count(label, label + n_tokens, ignored_label);
    }
    out_.microbatch(step * partition.n_microbatches() + m,
                    microbatch_of(samples, {n_tokens, begin}, tokens_, labels_, plan_.uploads));
  }
  out_.step_facts(step * plan_.n_ranks + plan_.rank, facts);
}

ValidationFeed::ValidationFeed(Loop& loop, Plan plan, SampleSource& source,
                               Port<Microbatch> validation)
    : plan_(plan),
      source_(source),
      validation_(std::move(validation)),
      wanted_(loop, WaitName("validation wanted", "stage")),
      tokens_(plan.has_tokens ? all_buffers(plan, source) : 0, plan.uploads),
      labels_(plan.has_labels ? all_buffers(plan, source) : 0, plan.uploads) {}

Task<> ValidationFeed::run() {
  const std::int64_t seq_len = source_.seq_len();
  const std::int64_t n_own = plan_.microbatches.size();
  const std::int64_t per_round = n_own + plan_.n_spare;
  const std::int64_t n_total = plan_.n_rounds * per_round;
  for (std::int64_t key = 0; key < n_total; ++key) {
    co_await wanted_.take(key);
    const std::int64_t i = key % per_round;
    const std::int64_t index = i < n_own ? plan_.microbatches.begin + i : spare_validation;
    const Range samples{index * plan_.microbatch_samples,
                        std::min(plan_.n_samples, (index + 1) * plan_.microbatch_samples)};
    const std::int64_t begin = key % plan_.n_buffers * plan_.microbatch_samples * seq_len;
    const std::int64_t n_tokens = samples.size() * seq_len;
    const MutView tokens = tokens_.here(n_tokens, begin);
    const MutView labels = labels_.here(n_tokens, begin);
    if (plan_.has_tokens || plan_.has_labels) {
      fetch_batch(source_, samples, out_of(tokens, labels));
    }
    validation_(key, microbatch_of(samples, {n_tokens, begin}, tokens_, labels_, plan_.uploads));
  }
}

}  // namespace llm
