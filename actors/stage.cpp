#include "actors/stage.h"

#include "src/rt/clock.h"
#include "src/rt/event.h"

namespace llm {
namespace {

const WaitName wait_forward{"forward computed"};
const WaitName wait_backward{"backward computed"};
const WaitName wait_validation{"validation computed"};

}  // namespace

Stage::Stage(Loop& loop, Queue& queue, Plan plan, const Decoder& decoder, ModelState& state,
             Outbox out)
    : loop_(loop),
      queue_(queue),
      plan_(std::move(plan)),
      decoder_(decoder),
      state_(state),
      out_(std::move(out)),
      microbatches_(loop, WaitName("microbatch", "data_feed"), 2 * plan_.accumulation.steps.size()),
      validation_(loop, WaitName("validation microbatch", "data_feed")),
      parameters_updated_(loop, WaitName("parameters_updated", "optimizer_shard")) {
  const ModelConfig& config = decoder_.config();
  const Range layers = all_layers(config);
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    values_.push_back(state_.values(layer));
  }
  scratch_ = Arena(scratch_bytes(config, layers, plan_.largest_microbatch, plan_.seq_len));
  grad_ = Storage(plan_.largest_microbatch * plan_.seq_len * config.hidden_size *
                  static_cast<std::int64_t>(size_of(config.compute)));
}

Task<> Stage::run() {
  std::int64_t round = 0;
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    const ParametersUpdated before = co_await parameters_updated_.take(step);
    if (before.stop) co_return;
    loss_scale_ = plan_.loss_scale * static_cast<float>(before.loss_scale);
    co_await run_step(step);
    if (!plan_.validation.due_after(step)) continue;
    const ParametersUpdated after = co_await parameters_updated_.take(step + 1);
    if (after.stop) co_return;
    co_await validate(round++);
    parameters_updated_.put(step + 1, after);  // for the next step's begin
  }
}

Task<> Stage::run_step(std::int64_t step) {
  const int per_flush = n_microbatches() / plan_.n_accumulation_steps;
  for (int flush = 0; flush < plan_.n_accumulation_steps; ++flush) {
    for (const Action action : plan_.schedule) {
      const int m = flush * per_flush + action.microbatch;
      switch (action.kind) {
        case Action::Kind::forward:
          co_await forward(step, m);
          break;
        case Action::Kind::backward:
          co_await backward(step, m);
          break;
        case Action::Kind::backward_input:
        case Action::Kind::backward_weight:
          CHECK_CONTRACT(false, "a backward is whole");
      }
    }
  }
  CHECK_CONTRACT(in_flight_.empty(), "every forward had its backward");
}

Task<> Stage::forward(std::int64_t step, int m) {
  const Microbatch microbatch = co_await microbatches_.take(step * n_microbatches() + m);
  InFlight& flight = in_flight_.emplace(m, InFlight(microbatch, take_arena())).first->second;
  const std::int64_t begin_ns = now_ns();
  enqueue_forward(step, flight);
  Event computed(loop_, wait_forward, m);
  queue_.notify([&computed] { computed.set(); });
  co_await computed;
  if (loop_.trace != nullptr) {
    loop_.trace->slice(loop_.current()->id(), "compute", "F", m, begin_ns, now_ns());
  }
}

Task<> Stage::backward(std::int64_t step, int m) {
  InFlight& flight = in_flight_.at(m);
  const std::int64_t begin_ns = now_ns();
  enqueue_backward(step, m, flight);
  Event computed(loop_, wait_backward, m);
  queue_.notify([&computed] { computed.set(); });
  co_await computed;
  if (loop_.trace != nullptr) {
    loop_.trace->slice(loop_.current()->id(), "compute", "B", m, begin_ns, now_ns());
  }
  const std::int64_t global = step * plan_.n_global_microbatches + plan_.first_microbatch + m;
  const LossReport report{flight.loss.sum, flight.loss.n_valid};
  out_.loss(global, report);
  flight.arena.release_to(0);
  free_arenas_.push_back(std::move(flight.arena));
  in_flight_.erase(m);
}

Task<> Stage::validate(std::int64_t round) {
  const Range own = plan_.validation_microbatches;
  const std::int64_t first = round * own.size();
  for (std::int64_t i = 0; i < own.size(); ++i) {
    if (i == 0) out_.validation_wanted(first, Ready{});
    if (i + 1 < own.size()) out_.validation_wanted(first + i + 1, Ready{});
    const Microbatch microbatch = co_await validation_.take(first + i);
    LossSum loss;
    const std::int64_t begin_ns = now_ns();
    enqueue_validation(microbatch, loss);
    Event computed(loop_, wait_validation, i);
    queue_.notify([&computed] { computed.set(); });
    co_await computed;
    if (loop_.trace != nullptr) {
      loop_.trace->slice(loop_.current()->id(), "compute", "V", i, begin_ns, now_ns());
    }
    const LossReport report{loss.sum, loss.n_valid};
    out_.validation_loss(round * plan_.validation.n_microbatches() + own.begin + i, report);
  }
}

Pass Stage::pass(const Microbatch& microbatch, std::int64_t step, bool training) {
  return {.queue = queue_,
          .scratch = scratch_,
          .batch = microbatch.batch,
          .seq_len = plan_.seq_len,
          .training = training,
          .seed = plan_.seed,
          .step = step,
          .first_sample = microbatch.first_sample};
}

void Stage::enqueue_forward(std::int64_t step, InFlight& flight) {
  const Pass p = pass(flight.microbatch, step, true);
  View x = decoder_.embed_forward(p, values_[0], flight.microbatch.tokens, flight.arena);
  for (std::int64_t layer = 0; layer < decoder_.config().n_layers; ++layer) {
    const Values& values = values_[static_cast<std::size_t>(layer + 1)];
    flight.blocks.push_back(decoder_.block_forward(p, layer, values, x, flight.arena));
    x = flight.blocks.back().y;
  }
  flight.output = x;
}

void Stage::enqueue_backward(std::int64_t step, int m, InFlight& flight) {
  const Pass p = pass(flight.microbatch, step, true);
  const ModelConfig& config = decoder_.config();
  const AccumulationStep& accumulation = plan_.accumulation.steps[static_cast<std::size_t>(m)];
  const bool adds = plan_.accumulation.kind == Accumulation::sequential && m > 0;
  const Write write = adds ? Write::add : Write::set;
  const MutView grad = grad_.view(config.compute, {p.n_tokens(), config.hidden_size});

  const std::int64_t head = head_layer(config);
  decoder_.head_forward_backward(p, values_.back(), flight.output, flight.microbatch.labels,
                                 loss_scale_, state_.gradients(head, accumulation.buffer), write,
                                 grad, flight.loss);
  finish_layer(step, m, head);
  for (std::int64_t layer = config.n_layers - 1; layer >= 0; --layer) {
    decoder_.block_backward(p, layer, values_[static_cast<std::size_t>(layer + 1)],
                            flight.blocks[static_cast<std::size_t>(layer)],
                            state_.gradients(layer, accumulation.buffer), write, grad);
    finish_layer(step, m, layer);
  }
  decoder_.embed_backward(p, flight.microbatch.tokens, grad,
                          state_.gradients(embedding_layer, accumulation.buffer),
                          config.tie_embeddings ? Write::add : write, write);
  finish_layer(step, m, embedding_layer);
}

void Stage::finish_layer(std::int64_t step, int m, std::int64_t layer) {
  state_.accumulate(queue_, layer, plan_.accumulation.steps[static_cast<std::size_t>(m)]);
  if (m != n_microbatches() - 1) return;
  const std::vector<Bucket>& buckets = state_.layout().buckets;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].ready_after_layer != layer) continue;
    const auto key =
        step * static_cast<std::int64_t>(buckets.size()) + static_cast<std::int64_t>(b);
    queue_.notify([this, key] { out_.grads_ready(key, Ready{}); });
  }
}

void Stage::enqueue_validation(const Microbatch& microbatch, LossSum& loss) {
  const Pass p = pass(microbatch, 0, false);
  const ModelConfig& config = decoder_.config();
  const MutView x = grad_.view(config.compute, {p.n_tokens(), config.hidden_size});
  decoder_.embed(p, values_[0], microbatch.tokens, x);
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
    decoder_.block(p, layer, values_[static_cast<std::size_t>(layer + 1)], x);
  }
  decoder_.head_loss(p, values_.back(), x, microbatch.labels, loss);
}

Arena Stage::take_arena() {
  if (free_arenas_.empty()) {
    const ModelConfig& config = decoder_.config();
    return Arena(saved_bytes(config, all_layers(config), plan_.largest_microbatch, plan_.seq_len));
  }
  Arena arena = std::move(free_arenas_.back());
  free_arenas_.pop_back();
  return arena;
}

}  // namespace llm
