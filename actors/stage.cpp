#include "actors/stage.h"

#include <algorithm>
#include <string>

#include "src/rt/clock.h"
#include "src/rt/event.h"

namespace llm {
namespace {

const WaitName wait_computed{"computed"};

/// As a schedule writes a backward or a half of one; a literal.
const char* letter_of(Action::Kind kind) {
  return kind == Action::Kind::backward ? "B" : kind == Action::Kind::backward_input ? "I" : "W";
}

std::vector<std::int64_t> rows_of_step(const Stage::Plan& plan) {
  std::vector<std::int64_t> rows;
  for (int flush = 0; flush < plan.n_accumulation_steps; ++flush) {
    for (const std::int64_t n : plan.microbatch_samples) {
      rows.push_back(plan.tp.rows(n * plan.seq_len).size());
    }
  }
  return rows;
}

std::vector<std::int64_t> rows_of_validation(const Stage::Plan& plan) {
  std::vector<std::int64_t> rows;
  const Range own = plan.validation_microbatches;
  for (std::int64_t i = own.begin; i < own.end; ++i) {
    rows.push_back(plan.tp.rows(plan.validation.samples(i).size() * plan.seq_len).size());
  }
  rows.resize(static_cast<std::size_t>(plan.n_validations()),
              plan.validation.samples(spare_validation).size() * plan.seq_len);
  return rows;
}

BufferRing::Size buffers(const Stage::Plan& plan, int n) {
  std::int64_t samples =
      *std::max_element(plan.microbatch_samples.begin(), plan.microbatch_samples.end());
  if (plan.validation.n_samples > 0) {
    samples = std::max(samples, plan.validation.microbatch_samples);
  }
  return {n, plan.tp.rows(samples * plan.seq_len).size(), plan.width, plan.dtype, plan.device};
}

/// Of the receivers of one chunk; empty where what they would receive comes from this rank.
struct ReceiverRings {
  int stage = 0;
  BufferRing::Size activations = {.n_buffers = 0};
  BufferRing::Size gradients = {.n_buffers = 0};
};

ReceiverRings receiver_rings(const Stage::Plan& plan, int chunk) {
  ReceiverRings rings;
  rings.stage = plan.pipeline.stage_of({plan.rank, chunk});
  const auto is_elsewhere = [&plan](int stage) {
    return 0 <= stage && stage < plan.pipeline.n_stages() &&
           plan.pipeline.place_of(stage).rank != plan.rank;
  };
  const Schedule& schedule = plan.pipeline.schedules[static_cast<std::size_t>(plan.rank)];
  // One more than are alive, so that the next one arrives meanwhile.
  if (is_elsewhere(rings.stage - 1)) {
    rings.activations = buffers(plan, peak_activations(schedule, chunk) + 1);
  }
  if (is_elsewhere(rings.stage + 1)) rings.gradients = buffers(plan, plan.n_gradient_buffers);
  return rings;
}

/// Of the gradients of a tied embedding that come from the first stage's rank.
BufferRing::Size embedding_ring(const Stage::Plan& plan) {
  const int last = plan.pipeline.place_of(plan.pipeline.n_stages() - 1).rank;
  const bool receives = plan.tied && plan.rank == last && plan.pipeline.place_of(0).rank != last;
  return buffers(plan, receives ? 2 : 0);
}

/// Whether this rank holds what its own ring is for.
int n_own_buffers(const Stage::Plan& plan) {
  const int last = plan.pipeline.n_stages() - 1;
  const bool has_end =
      plan.pipeline.place_of(0).rank == plan.rank || plan.pipeline.place_of(last).rank == plan.rank;
  return has_end ? plan.n_gradient_buffers : 0;
}

}  // namespace

std::int64_t stage_buffer_bytes(const Stage::Plan& plan) {
  std::int64_t bytes =
      buffers(plan, n_own_buffers(plan)).n_bytes() + embedding_ring(plan).n_bytes();
  for (int chunk = 0; chunk < plan.pipeline.n_chunks; ++chunk) {
    const ReceiverRings rings = receiver_rings(plan, chunk);
    bytes += rings.activations.n_bytes() + rings.gradients.n_bytes();
  }
  return bytes;
}

Stage::Chunk::Chunk(Loop& loop, int stage_)
    : stage(stage_),
      activations(loop, WaitName("activation", "stage " + std::to_string(stage - 1)), 1 << 20),
      gradients(loop, WaitName("input_grad", "stage " + std::to_string(stage + 1)), 1 << 20),
      validation_activations(
          loop, WaitName("validation activation", "stage " + std::to_string(stage - 1)), 1 << 20) {}

Stage::Stage(Transport& transport, Queue& queue, Plan plan, StageCompute& compute, Outbox out)
    : transport_(transport),
      loop_(transport.loop()),
      queue_(queue),
      plan_(std::move(plan)),
      compute_(compute),
      out_(std::move(out)),
      microbatch_rows_(rows_of_step(plan_)),
      validation_rows_(rows_of_validation(plan_)),
      microbatches_(loop_, WaitName("microbatch", "data_feed"),
                    2 * static_cast<std::size_t>(plan_.n_microbatches())),
      validation_(loop_, WaitName("validation microbatch", "data_feed")),
      parameters_updated_(loop_, WaitName("parameters_updated", "optimizer_shard")),
      own_ring_(loop_, buffers(plan_, n_own_buffers(plan_))),
      activation_sent_(loop_, WaitName("activation sent", "the next stage"), 1 << 20),
      embedding_added_(loop_, WaitName("embedding gradient", "the first stage"), 1 << 20),
      embedding_gradients_(loop_, WaitName("embedding gradient", "the first stage")) {
  for (int c = 0; c < plan_.pipeline.n_chunks; ++c) {
    chunks_.emplace_back(loop_, plan_.pipeline.stage_of({plan_.rank, c}));
    make_boundaries(c);
  }
  make_embedding_boundary();
}

void Stage::make_boundaries(int c) {
  Chunk& own = chunk(c);
  const int stage = own.stage;
  const auto boundary = [this](int other, MessageKind kind, int receiver) {
    const int rank = plan_.pipeline.place_of(other).rank;
    const int tag = plan_.first_tag + 2 * receiver + (kind == MessageKind::activation ? 0 : 1);
    return Boundary{plan_.ranks[static_cast<std::size_t>(rank)], tag, kind, receiver};
  };
  const ReceiverRings rings = receiver_rings(plan_, c);
  if (rings.activations.n_buffers > 0) {
    own.activation_receiver = std::make_unique<TensorReceiver>(
        transport_, boundary(stage - 1, MessageKind::activation, stage), rings.activations);
    own.gradient_sender = std::make_unique<TensorSender>(
        transport_, boundary(stage - 1, MessageKind::input_grad, stage - 1));
  }
  if (rings.gradients.n_buffers > 0) {
    own.activation_sender = std::make_unique<TensorSender>(
        transport_, boundary(stage + 1, MessageKind::activation, stage + 1));
    own.gradient_receiver = std::make_unique<TensorReceiver>(
        transport_, boundary(stage + 1, MessageKind::input_grad, stage), rings.gradients);
  }
}

void Stage::make_embedding_boundary() {
  const int last = plan_.pipeline.n_stages() - 1;
  const int first_rank = plan_.pipeline.place_of(0).rank;
  const int last_rank = plan_.pipeline.place_of(last).rank;
  if (!plan_.tied || first_rank == last_rank) return;
  const int tag = plan_.first_tag + 2 * plan_.pipeline.n_stages();
  const auto boundary = [&](int peer) {
    return Boundary{plan_.ranks[static_cast<std::size_t>(peer)], tag, MessageKind::embedding_grad,
                    last};
  };
  if (plan_.rank == first_rank) {
    embedding_sender_ = std::make_unique<TensorSender>(transport_, boundary(last_rank));
  }
  if (plan_.rank == last_rank) {
    embedding_receiver_ =
        std::make_unique<TensorReceiver>(transport_, boundary(first_rank), embedding_ring(plan_));
  }
}

void Stage::spawn() {
  loop_.spawn("stage", run());
  for (Chunk& own : chunks_) {
    const std::string suffix = " " + std::to_string(own.stage);
    if (own.activation_receiver) {
      loop_.spawn_background("activation_receiver" + suffix, own.activation_receiver->run());
      loop_.spawn_background("gradient_sender" + suffix, own.gradient_sender->run());
    }
    if (own.gradient_receiver) {
      loop_.spawn_background("activation_sender" + suffix, own.activation_sender->run());
      loop_.spawn_background("gradient_receiver" + suffix, own.gradient_receiver->run());
    }
  }
  if (embedding_sender_) {
    loop_.spawn_background("embedding_gradient_sender", embedding_sender_->run());
  }
  if (embedding_receiver_) {
    loop_.spawn_background("embedding_gradient_receiver", embedding_receiver_->run());
  }
}

Task<> Stage::run() {
  std::int64_t round = 0;
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    const ParametersUpdated before = co_await parameters_updated_.take(step);
    if (before.stop) break;
    compute_.begin_step(step, plan_.loss_scale * static_cast<float>(before.loss_scale));
    expect(step);
    co_await run_step(step);
    if (!plan_.validation.due_after(step)) continue;
    const ParametersUpdated after = co_await parameters_updated_.take(step + 1);
    if (after.stop) break;
    expect_validation(step, round);
    co_await validate(step, round++);
    parameters_updated_.put(step + 1, after);  // for the next step's begin
  }
  for (Chunk& own : chunks_) {
    if (own.activation_sender) co_await own.activation_sender->all_sent();
    if (own.gradient_sender) co_await own.gradient_sender->all_sent();
  }
  if (embedding_sender_) co_await embedding_sender_->all_sent();
}

void Stage::expect(std::int64_t step) {
  const std::int64_t first = step * plan_.n_microbatches();
  for (Chunk& own : chunks_) {
    if (own.activation_receiver) {
      own.activation_receiver->expected().put(
          n_expected_, ExpectedTensors(step, 0, first, microbatch_rows_, own.activations));
    }
    if (own.gradient_receiver) {
      own.gradient_receiver->expected().put(
          step - plan_.first_step,
          ExpectedTensors(step, 0, first, microbatch_rows_, own.gradients));
    }
  }
  if (embedding_receiver_) {
    embedding_receiver_->expected().put(
        step - plan_.first_step,
        ExpectedTensors(step, 0, first, microbatch_rows_, embedding_gradients_));
  }
  ++n_expected_;
}

void Stage::expect_validation(std::int64_t step, std::int64_t round) {
  const std::int64_t first = round * plan_.n_validations();
  for (Chunk& own : chunks_) {
    if (!own.activation_receiver) continue;
    own.activation_receiver->expected().put(
        n_expected_, ExpectedTensors(step, plan_.n_microbatches(), first, validation_rows_,
                                     own.validation_activations));
  }
  ++n_expected_;
}

Task<> Stage::run_step(std::int64_t step) {
  const int per_flush = static_cast<int>(plan_.microbatch_samples.size());
  const Schedule& schedule = plan_.pipeline.schedules[static_cast<std::size_t>(plan_.rank)];
  for (int flush = 0; flush < plan_.n_accumulation_steps; ++flush) {
    const auto place_of = [&](const Action& action) {
      return At{step, flush * per_flush + action.microbatch, action.chunk};
    };
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      const Action action = schedule[i];
      const At at = place_of(action);
      if (action.beside_next) {
        const Action second = schedule[++i];
        co_await beside(at, place_of(second), second.kind);
      } else if (action.kind == Action::Kind::forward) {
        co_await forward(at);
      } else {
        co_await backward(at, action.kind);
      }
    }
  }
  CHECK_CONTRACT(inputs_.empty(), "every forward had its backward");
  if (plan_.has_routers) out_.router_losses(step, std::exchange(router_losses_, {}));
  if (plan_.tied && is_here(plan_.pipeline.n_stages() - 1)) {
    const int n = plan_.n_microbatches();
    for (int m = std::max(0, n - plan_.n_embedding_gradients); m < n; ++m) {
      co_await embedding_added(step * n + m);
    }
  }
  held_.clear();
}

Task<> Stage::computed(const char* name, std::int64_t key, std::int64_t begin_ns) {
  Event done(loop_, wait_computed, key);
  queue_.notify([&done] { done.set(); });
  co_await done;
  trace_compute(name, key, begin_ns);
}

void Stage::trace_compute(const std::string& name, std::int64_t key, std::int64_t begin_ns) const {
  if (loop_.trace == nullptr) return;
  loop_.trace->slice(loop_.current()->id(), "compute", name, key, begin_ns, now_ns());
}

Task<Leased> Stage::activation_for(At at) {
  Chunk& own = chunk(at.chunk);
  if (own.stage == 0) co_return Leased();
  const Leased arrived = co_await own.activations.take(key(at));
  co_return arrived;
}

Task<View> Stage::input_for(At at) {
  if (!held_.contains(at.m)) {
    const Microbatch microbatch = co_await microbatches_.take(key(at));
    held_.emplace(at.m, microbatch);
  }
  const Leased input = co_await activation_for(at);
  inputs_.emplace(flight_key(at), input.lease);
  co_return input.tensor;
}

Task<> Stage::forward(At at) {
  const View input = co_await input_for(at);
  const StageCompute::ForwardWork work{at, &held_.at(at.m), input};
  const std::int64_t begin_ns = now_ns();
  const MutView output = co_await compute_.forward(work);
  co_await computed("F", at.m, begin_ns);
  pass_output_on(at, output);
}

void Stage::pass_output_on(At at, MutView output) {
  Chunk& own = chunk(at.chunk);
  if (is_last(own.stage)) return;
  if (own.activation_sender) {
    const Leased leased(output, Lease(activation_sent_, flight_key(at)));
    own.activation_sender->send(Outgoing(at.step, at.m, leased));
  } else {
    chunk_of_stage(own.stage + 1).activations.put(key(at), Leased(output, Lease()));
  }
}

Task<Leased> Stage::gradient_for(At at, Action::Kind kind) {
  Chunk& own = chunk(at.chunk);
  if (kind == Action::Kind::backward_weight) co_return Leased();
  if (!is_last(own.stage)) {
    const Leased arrived = co_await own.gradients.take(key(at));
    co_return arrived;
  }
  // A leaf of the tied embedding's gradient must be free.
  const At before{at.step, at.m - plan_.n_embedding_gradients, at.chunk};
  if (plan_.tied && before.m >= 0) co_await embedding_added(key(before));
  const Leased fresh = co_await own_ring_.take(microbatch_rows_[static_cast<std::size_t>(at.m)]);
  co_return fresh;
}

Task<> Stage::backward(At at, Action::Kind kind) {
  const Leased gradient = co_await gradient_for(at, kind);
  LossSum loss;
  const StageCompute::BackwardWork work{at, kind, &held_.at(at.m), gradient.tensor, &loss};
  const std::int64_t begin_ns = now_ns();
  co_await compute_.backward(work);
  co_await computed(letter_of(kind), at.m, begin_ns);
  co_await end_backward(at, kind, gradient, loss);
}

Task<> Stage::beside(At forward, At backward, Action::Kind kind) {
  const View input = co_await input_for(forward);
  const Leased gradient = co_await gradient_for(backward, kind);
  LossSum loss;
  Event forward_done(loop_, wait_computed, forward.m);
  Event backward_done(loop_, wait_computed, backward.m);
  const StageCompute::ForwardWork first{forward, &held_.at(forward.m), input,
                                        [&forward_done] { forward_done.set(); }};
  const StageCompute::BackwardWork second{
      backward,        kind,  &held_.at(backward.m),
      gradient.tensor, &loss, [&backward_done] { backward_done.set(); }};
  const std::int64_t begin_ns = now_ns();
  const MutView output = co_await compute_.beside(first, second);
  co_await forward_done;
  pass_output_on(forward, output);
  co_await backward_done;
  trace_compute(std::string("F|") + letter_of(kind), backward.m, begin_ns);
  co_await end_backward(backward, kind, gradient, loss);
}

Task<> Stage::end_backward(At at, Action::Kind kind, Leased gradient, LossSum loss) {
  if (kind != Action::Kind::backward_weight) {
    router_losses_.balance += loss.router.balance;
    router_losses_.z += loss.router.z;
    if (is_last(chunk(at.chunk).stage)) {
      const std::int64_t global =
          at.step * plan_.n_global_microbatches + plan_.first_microbatch + at.m;
      const LossReport report{loss.sum, loss.n_valid};
      out_.loss(global, report);
    }
    pass_gradient_on(at, gradient);
  }
  if (kind != Action::Kind::backward_input) co_await finish(at);
}

void Stage::pass_gradient_on(At at, Leased gradient) {
  Chunk& own = chunk(at.chunk);
  if (own.gradient_sender) {
    own.gradient_sender->send(Outgoing(at.step, at.m, gradient));
  } else if (own.stage > 0) {
    chunk_of_stage(own.stage - 1).gradients.put(key(at), gradient);
  } else if (embedding_sender_) {
    embedding_sender_->send(Outgoing(at.step, at.m, gradient));
  } else {
    gradient.lease.give_back();
    if (plan_.tied) embedding_added_.put(key(at), Ready{});
  }
}

Task<> Stage::finish(At at) {
  // The next stage has long received what its backward has answered.
  if (chunk(at.chunk).activation_sender) co_await activation_sent_.take(flight_key(at));
  compute_.release(at);
  const auto input = inputs_.find(flight_key(at));
  input->second.give_back();
  inputs_.erase(input);
}

Task<> Stage::embedding_added(std::int64_t k) {
  if (!embedding_receiver_) {
    co_await embedding_added_.take(k);
    co_return;
  }
  const std::int64_t a = plan_.n_microbatches();
  const Leased gradient = co_await embedding_gradients_.take(k);
  const int last = plan_.pipeline.n_stages() - 1;
  const At at{k / a, static_cast<int>(k % a), plan_.pipeline.place_of(last).chunk};
  compute_.embedding_backward(at, held_.at(at.m), gradient.tensor);
  queue_.notify([lease = gradient.lease] { lease.give_back(); });
}

}  // namespace llm
