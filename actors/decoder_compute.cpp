#include "actors/decoder_compute.h"

#include <algorithm>

#include "src/base/check.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

constexpr std::array<const char*, 2> pair_names{", forward of a pair", ", backward of a pair"};

Range blocks_in(const ModelConfig& config, Range layers) {
  return {std::max<std::int64_t>(layers.begin, 0), std::min(layers.end, config.n_layers)};
}

/// The layers whose parameters an action of a chunk reads, in its order.
std::vector<std::int64_t> layers_read(const ModelConfig& config, Range layers, Action::Kind kind) {
  const Range blocks = blocks_in(config, layers);
  std::vector<std::int64_t> read;
  for (std::int64_t layer = blocks.begin; layer < blocks.end; ++layer) read.push_back(layer);
  if (kind == Action::Kind::forward) {
    if (has_layer({layers}, embedding_layer)) read.insert(read.begin(), embedding_layer);
    return read;
  }
  std::reverse(read.begin(), read.end());
  const bool has_head = has_layer({layers}, head_layer(config));
  if (has_head && kind != Action::Kind::backward_weight) {
    read.insert(read.begin(), head_layer(config));
  }
  return read;
}

void add_one(const std::vector<std::int64_t>& read, LayerUses& uses) {
  for (const std::int64_t layer : read) {
    uses.done_with.push_back(static_cast<int>(uses.layers.size()));
    uses.layers.push_back(layer);
  }
}

/// As beside() acquires them: in rounds of one layer each, whose work is enqueued a round later.
void add_pair(const std::array<std::vector<std::int64_t>, 2>& read, LayerUses& uses) {
  const std::size_t n_rounds = std::max(read[0].size(), read[1].size());
  std::vector<int> round_end;
  for (std::size_t round = 0; round < n_rounds; ++round) {
    for (const std::vector<std::int64_t>& of_one : read) {
      if (round < of_one.size()) uses.layers.push_back(of_one[round]);
    }
    round_end.push_back(static_cast<int>(uses.layers.size()) - 1);
  }
  for (std::size_t round = 0; round < n_rounds; ++round) {
    const int done_with = round_end[std::min(round + 1, n_rounds - 1)];
    while (static_cast<int>(uses.done_with.size()) <= round_end[round]) {
      uses.done_with.push_back(done_with);
    }
  }
}

}  // namespace

void add_uses(const ModelConfig& config, const LayerRanges& chunks, const Schedule& schedule,
              LayerUses& uses) {
  const auto read_by = [&](const Action& action) {
    return layers_read(config, chunks[static_cast<std::size_t>(action.chunk)], action.kind);
  };
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].beside_next) {
      add_pair({read_by(schedule[i]), read_by(schedule[i + 1])}, uses);
      ++i;
    } else {
      add_one(read_by(schedule[i]), uses);
    }
  }
}

std::vector<std::int64_t> layers_validated(const ModelConfig& config, Range layers) {
  std::vector<std::int64_t> read = layers_read(config, layers, Action::Kind::forward);
  if (has_layer({layers}, head_layer(config))) read.push_back(head_layer(config));
  return read;
}

ComputeBytes compute_bytes(const ModelConfig& config, const DecoderCompute::Plan& plan) {
  const std::int64_t batch = plan.largest_microbatch;
  const std::int64_t recomputed = recomputed_bytes(config, batch, plan.seq_len);
  ComputeBytes bytes;
  for (const Range& layers : plan.chunks) {
    const std::int64_t n_blocks = blocks_in(config, layers).size();
    bytes.saved =
        std::max(bytes.saved, saved_bytes(config, layers, batch, plan.seq_len, plan.recompute));
    bytes.scratch = std::max(bytes.scratch, scratch_bytes(config, layers, batch, plan.seq_len));
    if (!plan.splits_backwards) continue;
    std::int64_t of_block = delta_bytes(config, batch, plan.seq_len);
    if (plan.recompute == Recompute::block) of_block += recomputed;
    bytes.deltas = std::max(bytes.deltas, n_blocks * of_block);
  }
  if (plan.recompute == Recompute::block) bytes.recomputed = recomputed;
  if (plan.has_pairs) bytes.n_rooms = 2;
  return bytes;
}

DecoderCompute::DecoderCompute(Queue& queue, Plan plan, const Decoder& decoder, ModelState& state,
                               Port<Ready> grads_ready, ParameterSource* parameters,
                               GroupSums* sums, RowExchange* exchange)
    : queue_(queue),
      plan_(std::move(plan)),
      decoder_(decoder),
      state_(state),
      grads_ready_(std::move(grads_ready)),
      parameters_(parameters),
      sums_(sums),
      exchange_(exchange) {
  const ModelConfig& config = decoder_.config();
  for (const Range& layers : plan_.chunks) {
    for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
      values_.emplace(layer, state_.values(layer));
    }
  }
  if (state_.tied_tensor() >= 0) {
    tied_.emplace(state_, tied_accumulation(plan_.accumulation), plan_.n_pending_leaves);
  }
  const ComputeBytes bytes = compute_bytes(config, plan_);
  for (int i = 0; i < bytes.n_rooms; ++i) {
    rooms_[static_cast<std::size_t>(i)] = {Arena(bytes.scratch, queue_.device()),
                                           Arena(bytes.recomputed, queue_.device())};
  }
  if (plan_.has_pairs) alternation_.emplace(queue_, pair_names);
  saved_bytes_ = bytes.saved;
  delta_bytes_ = bytes.deltas;
}

void DecoderCompute::begin_step(std::int64_t step, float loss_scale) {
  CHECK_CONTRACT(in_flight_.empty(), "every forward had its backward");
  step_ = step;
  loss_scale_ = loss_scale;
  waits_for_.clear();
  for (const Bucket& bucket : state_.layout().buckets) {
    std::vector<std::int64_t>& tensors = waits_for_.emplace_back();
    for (const BucketPiece& piece : bucket.pieces) tensors.push_back(piece.tensor);
  }
}

std::vector<Queue*> DecoderCompute::lanes() {
  if (!alternation_) return {};
  return {&alternation_->lane(0), &alternation_->lane(1)};
}

Pass DecoderCompute::pass(const Lane& lane, const Samples& samples) {
  return {.queue = lane.queue,
          .scratch = lane.room.scratch,
          .batch = samples.batch,
          .seq_len = plan_.seq_len,
          .training = samples.training,
          .seed = plan_.seed,
          .step = samples.step,
          .first_sample = samples.first_sample,
          .sums = sums_,
          .exchange = exchange_};
}

Pass DecoderCompute::pass_of(const Lane& lane, const At& at) {
  const InFlight& flight = in_flight(at);
  return pass(lane, {flight.batch, flight.first_sample, at.step, true});
}

void DecoderCompute::set_losses(Pass& p, const Microbatch& microbatch, LossSum& loss) const {
  p.labels = microbatch.labels;
  p.loss_scale = loss_scale_;
  // Tensor-parallel ranks have the same routers.
  if (decoder_.config().tp.rank == 0) p.router_losses = &loss.router;
}

Range DecoderCompute::blocks_of(int chunk) const {
  return blocks_in(decoder_.config(), plan_.chunks[static_cast<std::size_t>(chunk)]);
}

bool DecoderCompute::has(int chunk, std::int64_t layer) const {
  return has_layer({plan_.chunks[static_cast<std::size_t>(chunk)]}, layer);
}

Write DecoderCompute::write(int m) const {
  const bool adds = plan_.accumulation.kind == Accumulation::sequential && m > 0;
  return adds ? Write::add : Write::set;
}

Gradients DecoderCompute::gradients(std::int64_t layer, int m) const {
  return state_.gradients(layer, plan_.accumulation.steps[static_cast<std::size_t>(m)].buffer);
}

Arena DecoderCompute::take(std::vector<Arena>& free, std::int64_t n_bytes) const {
  if (free.empty()) return Arena(n_bytes, queue_.device());
  Arena arena = std::move(free.back());
  free.pop_back();
  return arena;
}

Task<> DecoderCompute::acquire(Queue& queue, std::int64_t step, std::int64_t layer) {
  if (parameters_ == nullptr) co_return;
  // What is in the queue may go to the device now or with what follows, as messages come: graphs
  // end where they would end if it had to wait.
  queue.end_graph();
  co_await parameters_->acquire(step, layer);
  if (parameters_->moves()) values_.insert_or_assign(layer, state_.values(layer));
}

void DecoderCompute::give_back(const Lane& lane, std::int64_t layer) {
  if (parameters_ == nullptr) return;
  if (lane.held != nullptr) {
    lane.held->push_back(layer);
  } else {
    parameters_->release(layer);
  }
}

void DecoderCompute::release_held(std::vector<std::int64_t>& held) {
  for (const std::int64_t layer : held) parameters_->release(layer);
  held.clear();
}

std::vector<std::int64_t> DecoderCompute::layers_of(int chunk, Action::Kind kind) const {
  const Range layers = plan_.chunks[static_cast<std::size_t>(chunk)];
  std::vector<std::int64_t> all = layers_read(decoder_.config(), layers, kind);
  const bool gives_input = kind == Action::Kind::backward || kind == Action::Kind::backward_input;
  if (gives_input && has(chunk, embedding_layer)) all.push_back(embedding_layer);
  return all;
}

void DecoderCompute::begin_forward(const ForwardWork& work) {
  InFlight& flight = in_flight_[{work.at.chunk, work.at.m}];
  flight.batch = work.microbatch->batch;
  flight.first_sample = work.microbatch->first_sample;
  flight.arena = take(free_arenas_, saved_bytes_);
}

Task<MutView> DecoderCompute::forward(const ForwardWork& work) {
  begin_forward(work);
  const Lane lane = alone();
  for (const std::int64_t layer : layers_of(work.at.chunk, Action::Kind::forward)) {
    co_await forward_layer(lane, work, layer);
  }
  co_return in_flight(work.at).output;
}

Task<> DecoderCompute::forward_layer(const Lane& lane, const ForwardWork& work,
                                     std::int64_t layer) {
  co_await acquire(lane.queue, work.at.step, layer);
  InFlight& flight = in_flight(work.at);
  const Pass p = pass_of(lane, work.at);
  if (layer == embedding_layer) {
    flight.output = decoder_.embed_forward(p, values(layer), work.microbatch->tokens, flight.arena);
  } else {
    const View x = flight.output.empty() ? work.input : flight.output;
    const ModelConfig& config = decoder_.config();
    const std::int64_t n_own = config.tp.rows(p.n_tokens()).size();
    const MutView y = flight.arena.take(config.compute, {n_own, config.hidden_size});
    const bool recompute = plan_.recompute == Recompute::block;
    Arena& saved = recompute ? lane.room.recomputed : flight.arena;
    flight.blocks.push_back(decoder_.block_forward(p, layer, values(layer), x, saved, y));
    lane.room.recomputed.release_to(0);
    flight.output = y;
  }
  give_back(lane, layer);
}

void DecoderCompute::begin_backward(const BackwardWork& work) {
  if (work.kind != Action::Kind::backward_input) return;
  in_flight(work.at).deltas = take(free_deltas_, delta_bytes_);
}

Task<> DecoderCompute::backward(const BackwardWork& work) {
  begin_backward(work);
  const Lane lane = alone();
  for (const std::int64_t layer : layers_of(work.at.chunk, work.kind)) {
    co_await backward_layer(lane, work, layer);
  }
}

Task<> DecoderCompute::backward_layer(const Lane& lane, const BackwardWork& work,
                                      std::int64_t layer) {
  Pass p = pass_of(lane, work.at);
  if (layer == embedding_layer) {
    embed_backward(lane, p, work);
    co_return;
  }
  co_await acquire(lane.queue, work.at.step, layer);
  if (work.kind == Action::Kind::backward_weight) {
    block_backward_weight(lane, p, work.at, layer);
    co_return;
  }
  set_losses(p, *work.microbatch, *work.loss);
  if (layer == head_layer(decoder_.config())) {
    head_backward(lane, p, work);
  } else {
    block_backward(lane, p, work, layer);
  }
}

Task<MutView> DecoderCompute::beside(const ForwardWork& forward, const BackwardWork& backward) {
  begin_forward(forward);
  begin_backward(backward);
  const std::vector<std::int64_t> first = layers_of(forward.at.chunk, Action::Kind::forward);
  const std::vector<std::int64_t> second = layers_of(backward.at.chunk, backward.kind);
  std::vector<std::int64_t> held;         // of this round
  std::vector<std::int64_t> held_before;  // of the one before
  const Lane forward_lane{alternation_->lane(0), rooms_[0], &held};
  const Lane backward_lane{alternation_->lane(1), rooms_[1], &held};
  for (std::size_t round = 0; round < std::max(first.size(), second.size()); ++round) {
    if (round < first.size()) co_await forward_layer(forward_lane, forward, first[round]);
    if (round < second.size()) co_await backward_layer(backward_lane, backward, second[round]);
    alternation_->end_round();
    release_held(held_before);
    std::swap(held, held_before);
  }
  forward_lane.queue.notify(forward.done);
  backward_lane.queue.notify(backward.done);
  alternation_->finish();
  release_held(held_before);
  co_return in_flight(forward.at).output;
}

void DecoderCompute::head_backward(const Lane& lane, const Pass& p, const BackwardWork& work) {
  const At& at = work.at;
  const std::int64_t head = head_layer(decoder_.config());
  Gradients grads = gradients(head, at.m);
  if (tied_) {
    grads[Role::head_weight] = tied_->leaf(at.m);
    if (write(at.m) == Write::add) fill(lane.queue, 0, grads[Role::head_weight]);
  }
  decoder_.head_forward_backward(p, values(head), in_flight(at).output, work.microbatch->labels,
                                 loss_scale_, grads, write(at.m), work.grad, *work.loss);
  give_back(lane, head);
  accumulate(lane.queue, head, at.m, GradientPart::all);
  complete(lane.queue, head, at.m);
}

void DecoderCompute::embed_backward(const Lane& lane, const Pass& p, const BackwardWork& work) {
  const int m = work.at.m;
  Gradients grads = gradients(embedding_layer, m);
  const bool is_tied = decoder_.config().tie_embeddings;
  if (tied_) grads[Role::token_embedding] = tied_->leaf(m);
  decoder_.embed_backward(p, work.microbatch->tokens, work.grad, grads,
                          is_tied ? Write::add : write(m), write(m));
  accumulate(lane.queue, embedding_layer, m, GradientPart::all);
  if (tied_) tied_->merge(lane.queue, m);
  complete(lane.queue, embedding_layer, m);
}

BlockSaved DecoderCompute::saved_for(const Pass& p, const At& at, std::int64_t layer,
                                     Arena& recomputed) {
  const std::int64_t first = blocks_of(at.chunk).begin;
  const BlockSaved& saved = in_flight(at).blocks[static_cast<std::size_t>(layer - first)];
  if (plan_.recompute == Recompute::none) return saved;
  return decoder_.block_recompute(p, layer, values(layer), saved.x, recomputed);
}

void DecoderCompute::block_backward(const Lane& lane, const Pass& p, const BackwardWork& work,
                                    std::int64_t layer) {
  const At& at = work.at;
  const Gradients grads = gradients(layer, at.m);
  if (work.kind == Action::Kind::backward_input) {
    InFlight& flight = in_flight(at);
    const BlockSaved saved = saved_for(p, at, layer, *flight.deltas);
    const BlockDeltas deltas = decoder_.block_backward_input(
        p, layer, values(layer), saved, grads, write(at.m), work.grad, *flight.deltas);
    give_back(lane, layer);
    flight.halves.push_back({saved, deltas});
    accumulate(lane.queue, layer, at.m, GradientPart::norms);
    return;
  }
  const BlockSaved saved = saved_for(p, at, layer, lane.room.recomputed);
  lane.room.recomputed.release_to(0);
  const auto finish = [&](GradientPart part) {
    accumulate(lane.queue, layer, at.m, part);
    complete(lane.queue, layer, at.m, part);
  };
  decoder_.block_backward(p, layer, values(layer), saved, grads, write(at.m), work.grad,
                          [&] { finish(GradientPart::mlp); });
  give_back(lane, layer);
  finish(GradientPart::attention);
}

void DecoderCompute::block_backward_weight(const Lane& lane, const Pass& p, const At& at,
                                           std::int64_t layer) {
  const std::int64_t index = blocks_of(at.chunk).end - 1 - layer;
  const Half& half = in_flight(at).halves[static_cast<std::size_t>(index)];
  decoder_.block_backward_weight(p, values(layer), half.saved, half.deltas, gradients(layer, at.m),
                                 write(at.m));
  give_back(lane, layer);
  accumulate(lane.queue, layer, at.m, GradientPart::matrices);
  complete(lane.queue, layer, at.m);
}

void DecoderCompute::release(const At& at) {
  InFlight& flight = in_flight(at);
  flight.arena.release_to(0);
  free_arenas_.push_back(std::move(flight.arena));
  if (flight.deltas) {
    flight.deltas->release_to(0);
    free_deltas_.push_back(std::move(*flight.deltas));
  }
  in_flight_.erase({at.chunk, at.m});
}

void DecoderCompute::embedding_backward(const At& at, const Microbatch& microbatch, View grad) {
  const Pass p = pass(alone(), {microbatch.batch, microbatch.first_sample, at.step, true});
  decoder_.embed_table_backward(p, microbatch.tokens, grad, tied_->leaf(at.m));
  tied_->merge(queue_, at.m);
  complete(queue_, embedding_layer, at.m);
}

void DecoderCompute::accumulate(Queue& queue, std::int64_t layer, int m, GradientPart part) {
  state_.accumulate(queue, layer, plan_.accumulation.steps[static_cast<std::size_t>(m)], part);
}

void DecoderCompute::complete(Queue& queue, std::int64_t layer, int m, GradientPart part) {
  if (m != n_microbatches() - 1) return;
  if (part == GradientPart::all || part == GradientPart::attention) add_shared_heads(queue, layer);
  if (decoder_.config().tp.cuts_rows) add_norms(queue, layer, part);
  for (std::size_t b = 0; b < waits_for_.size(); ++b) {
    const std::size_t n_completed = std::erase_if(
        waits_for_[b], [&](std::int64_t tensor) { return state_.completes(tensor, layer, part); });
    if (n_completed == 0 || !waits_for_[b].empty()) continue;
    const std::int64_t key =
        step_ * static_cast<std::int64_t>(waits_for_.size()) + static_cast<std::int64_t>(b);
    queue.notify([this, key] { grads_ready_(key, Ready{}); });
  }
}

void DecoderCompute::add_shared_heads(Queue& queue, std::int64_t layer) {
  const ModelConfig& config = decoder_.config();
  const bool is_block = 0 <= layer && layer < config.n_layers;
  if (sums_ == nullptr || config.n_kv_sharers() == 1 || !is_block) return;
  const Gradients grads = state_.gradients(layer, 0);
  for (const Role role : {Role::qkv_weight, Role::qkv_bias}) {
    const MutView whole = grads[role];
    if (whole.empty()) continue;
    const std::int64_t begin = whole.n_elements() / config.qkv_width() * config.attention_width();
    sums_->all_reduce_kv(queue, llm::part(whole, begin, {whole.n_elements() - begin}));
  }
}

void DecoderCompute::add_norms(Queue& queue, std::int64_t layer, GradientPart part) {
  const Gradients grads = state_.gradients(layer, 0);
  const auto add = [&](std::initializer_list<Role> roles) {
    for (const Role role : roles) {
      if (!grads[role].empty()) sums_->all_reduce(queue, grads[role]);
    }
  };
  if (part != GradientPart::attention) add({Role::norm2_weight, Role::norm2_bias});
  if (part != GradientPart::mlp) add({Role::norm1_weight, Role::norm1_bias});
  add({Role::final_norm_weight, Role::final_norm_bias});
}

Task<> DecoderCompute::validate(std::int64_t step, int chunk, const Microbatch& microbatch,
                                MutView x, LossSum& loss) {
  const Lane lane = alone();
  Pass p = pass(lane, {microbatch.batch, microbatch.first_sample, 0, false});
  p.most_tokens = plan_.largest_microbatch * plan_.seq_len;  // others' may be larger than this one
  if (has(chunk, embedding_layer)) {
    co_await acquire(queue_, step, embedding_layer);
    decoder_.embed(p, values(embedding_layer), microbatch.tokens, x);
    give_back(lane, embedding_layer);
  }
  const Range blocks = blocks_of(chunk);
  for (std::int64_t layer = blocks.begin; layer < blocks.end; ++layer) {
    co_await acquire(queue_, step, layer);
    decoder_.block(p, layer, values(layer), x);
    give_back(lane, layer);
  }
  const std::int64_t head = head_layer(decoder_.config());
  if (!has(chunk, head)) co_return;
  co_await acquire(queue_, step, head);
  decoder_.head_loss(p, values(head), x, microbatch.labels, loss);
  give_back(lane, head);
}

}  // namespace llm
