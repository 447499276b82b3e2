#include "actors/decoder_compute.h"

#include <algorithm>

#include "src/base/check.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

Range blocks_in(const ModelConfig& config, Range layers) {
  return {std::max<std::int64_t>(layers.begin, 0), std::min(layers.end, config.n_layers)};
}

}  // namespace

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
  scratch_ = Arena(bytes.scratch);
  recomputed_ = Arena(bytes.recomputed);
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

Pass DecoderCompute::pass(std::int64_t batch, std::int64_t first_sample, std::int64_t step,
                          bool training) {
  return {.queue = queue_,
          .scratch = scratch_,
          .batch = batch,
          .seq_len = plan_.seq_len,
          .training = training,
          .seed = plan_.seed,
          .step = step,
          .first_sample = first_sample,
          .sums = sums_,
          .exchange = exchange_};
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

Arena DecoderCompute::take(std::vector<Arena>& free, std::int64_t n_bytes) {
  if (free.empty()) return Arena(n_bytes);
  Arena arena = std::move(free.back());
  free.pop_back();
  return arena;
}

Task<> DecoderCompute::acquire(std::int64_t step, std::int64_t layer) {
  if (parameters_ == nullptr) co_return;
  co_await parameters_->acquire(step, layer);
  if (parameters_->moves()) values_.insert_or_assign(layer, state_.values(layer));
}

void DecoderCompute::give_back(std::int64_t layer) {
  if (parameters_ != nullptr) parameters_->release(layer);
}

Task<> DecoderCompute::acquire_head(At at) {
  const std::int64_t head = head_layer(decoder_.config());
  if (has(at.chunk, head)) co_await acquire(at.step, head);
}

Task<MutView> DecoderCompute::forward(At at, const Microbatch& microbatch, View input) {
  const bool recompute = plan_.recompute == Recompute::block;
  InFlight& flight = in_flight_[{at.chunk, at.m}];
  flight.batch = microbatch.batch;
  flight.first_sample = microbatch.first_sample;
  flight.arena = take(free_arenas_, saved_bytes_);
  const Pass p = pass(microbatch.batch, microbatch.first_sample, at.step, true);
  View x = input;
  if (has(at.chunk, embedding_layer)) {
    co_await acquire(at.step, embedding_layer);
    flight.output =
        decoder_.embed_forward(p, values(embedding_layer), microbatch.tokens, flight.arena);
    give_back(embedding_layer);
    x = flight.output;
  }
  const Range blocks = blocks_of(at.chunk);
  for (std::int64_t layer = blocks.begin; layer < blocks.end; ++layer) {
    co_await acquire(at.step, layer);
    const ModelConfig& config = decoder_.config();
    const std::int64_t n_own = config.tp.rows(p.n_tokens()).size();
    const MutView y = flight.arena.take(config.compute, {n_own, config.hidden_size});
    Arena& saved = recompute ? recomputed_ : flight.arena;
    flight.blocks.push_back(decoder_.block_forward(p, layer, values(layer), x, saved, y));
    give_back(layer);
    recomputed_.release_to(0);
    flight.output = y;
    x = y;
  }
  co_return flight.output;
}

void DecoderCompute::head_backward(const Pass& p, const At& at, const Microbatch& microbatch,
                                   MutView grad, LossSum& loss) {
  const std::int64_t head = head_layer(decoder_.config());
  if (!has(at.chunk, head)) return;
  Gradients grads = gradients(head, at.m);
  if (tied_) {
    grads[Role::head_weight] = tied_->leaf(at.m);
    if (write(at.m) == Write::add) fill(queue_, 0, grads[Role::head_weight]);
  }
  decoder_.head_forward_backward(p, values(head), in_flight(at).output, microbatch.labels,
                                 loss_scale_, grads, write(at.m), grad, loss);
  give_back(head);
  accumulate(head, at.m, GradientPart::all);
  complete(head, at.m);
}

void DecoderCompute::embed_backward(const Pass& p, const At& at, const Microbatch& microbatch,
                                    MutView grad) {
  if (!has(at.chunk, embedding_layer)) return;
  Gradients grads = gradients(embedding_layer, at.m);
  const bool is_tied = decoder_.config().tie_embeddings;
  if (tied_) grads[Role::token_embedding] = tied_->leaf(at.m);
  decoder_.embed_backward(p, microbatch.tokens, grad, grads, is_tied ? Write::add : write(at.m),
                          write(at.m));
  accumulate(embedding_layer, at.m, GradientPart::all);
  if (tied_) tied_->merge(queue_, at.m);
  complete(embedding_layer, at.m);
}

BlockSaved DecoderCompute::saved_for(const Pass& p, const At& at, std::int64_t layer,
                                     Arena& recomputed) {
  const std::int64_t first = blocks_of(at.chunk).begin;
  const BlockSaved& saved = in_flight(at).blocks[static_cast<std::size_t>(layer - first)];
  if (plan_.recompute == Recompute::none) return saved;
  return decoder_.block_recompute(p, layer, values(layer), saved.x, recomputed);
}

Task<> DecoderCompute::backward(At at, const Microbatch& microbatch, MutView grad, LossSum& loss) {
  InFlight& flight = in_flight(at);
  Pass p = pass(flight.batch, flight.first_sample, at.step, true);
  set_losses(p, microbatch, loss);
  co_await acquire_head(at);
  head_backward(p, at, microbatch, grad, loss);
  const Range blocks = blocks_of(at.chunk);
  for (std::int64_t layer = blocks.end - 1; layer >= blocks.begin; --layer) {
    co_await acquire(at.step, layer);
    const BlockSaved saved = saved_for(p, at, layer, recomputed_);
    recomputed_.release_to(0);
    const auto finish = [&](GradientPart part) {
      accumulate(layer, at.m, part);
      complete(layer, at.m, part);
    };
    decoder_.block_backward(p, layer, values(layer), saved, gradients(layer, at.m), write(at.m),
                            grad, [&] { finish(GradientPart::mlp); });
    give_back(layer);
    finish(GradientPart::attention);
  }
  embed_backward(p, at, microbatch, grad);
}

Task<> DecoderCompute::backward_input(At at, const Microbatch& microbatch, MutView grad,
                                      LossSum& loss) {
  InFlight& flight = in_flight(at);
  co_await acquire_head(at);
  flight.deltas = take(free_deltas_, delta_bytes_);
  Pass p = pass(flight.batch, flight.first_sample, at.step, true);
  set_losses(p, microbatch, loss);
  head_backward(p, at, microbatch, grad, loss);
  const Range blocks = blocks_of(at.chunk);
  for (std::int64_t layer = blocks.end - 1; layer >= blocks.begin; --layer) {
    co_await acquire(at.step, layer);
    const BlockSaved saved = saved_for(p, at, layer, *flight.deltas);
    const BlockDeltas deltas = decoder_.block_backward_input(
        p, layer, values(layer), saved, gradients(layer, at.m), write(at.m), grad, *flight.deltas);
    give_back(layer);
    flight.halves.push_back({saved, deltas});
    accumulate(layer, at.m, GradientPart::norms);
  }
  embed_backward(p, at, microbatch, grad);
}

Task<> DecoderCompute::backward_weight(At at) {
  InFlight& flight = in_flight(at);
  const Pass p = pass(flight.batch, flight.first_sample, at.step, true);
  std::int64_t layer = blocks_of(at.chunk).end;
  for (const Half& half : flight.halves) {
    --layer;
    co_await acquire(at.step, layer);
    decoder_.block_backward_weight(p, values(layer), half.saved, half.deltas,
                                   gradients(layer, at.m), write(at.m));
    give_back(layer);
    accumulate(layer, at.m, GradientPart::matrices);
    complete(layer, at.m);
  }
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
  const Pass p = pass(microbatch.batch, microbatch.first_sample, at.step, true);
  decoder_.embed_table_backward(p, microbatch.tokens, grad, tied_->leaf(at.m));
  tied_->merge(queue_, at.m);
  complete(embedding_layer, at.m);
}

void DecoderCompute::accumulate(std::int64_t layer, int m, GradientPart part) {
  state_.accumulate(queue_, layer, plan_.accumulation.steps[static_cast<std::size_t>(m)], part);
}

void DecoderCompute::complete(std::int64_t layer, int m, GradientPart part) {
  if (m != n_microbatches() - 1) return;
  if (part == GradientPart::all || part == GradientPart::attention) add_shared_heads(layer);
  if (decoder_.config().tp.cuts_rows) add_norms(layer, part);
  for (std::size_t b = 0; b < waits_for_.size(); ++b) {
    const std::size_t n_completed = std::erase_if(
        waits_for_[b], [&](std::int64_t tensor) { return state_.completes(tensor, layer, part); });
    if (n_completed == 0 || !waits_for_[b].empty()) continue;
    const std::int64_t key =
        step_ * static_cast<std::int64_t>(waits_for_.size()) + static_cast<std::int64_t>(b);
    queue_.notify([this, key] { grads_ready_(key, Ready{}); });
  }
}

void DecoderCompute::add_shared_heads(std::int64_t layer) {
  const ModelConfig& config = decoder_.config();
  const bool is_block = 0 <= layer && layer < config.n_layers;
  if (sums_ == nullptr || config.n_kv_sharers() == 1 || !is_block) return;
  const Gradients grads = state_.gradients(layer, 0);
  for (const Role role : {Role::qkv_weight, Role::qkv_bias}) {
    const MutView whole = grads[role];
    if (whole.empty()) continue;
    const std::int64_t begin = whole.n_elements() / config.qkv_width() * config.attention_width();
    sums_->all_reduce_kv(queue_, llm::part(whole, begin, {whole.n_elements() - begin}));
  }
}

void DecoderCompute::add_norms(std::int64_t layer, GradientPart part) {
  const Gradients grads = state_.gradients(layer, 0);
  const auto add = [&](std::initializer_list<Role> roles) {
    for (const Role role : roles) {
      if (!grads[role].empty()) sums_->all_reduce(queue_, grads[role]);
    }
  };
  if (part != GradientPart::attention) add({Role::norm2_weight, Role::norm2_bias});
  if (part != GradientPart::mlp) add({Role::norm1_weight, Role::norm1_bias});
  add({Role::final_norm_weight, Role::final_norm_bias});
}

Task<> DecoderCompute::validate(std::int64_t step, int chunk, const Microbatch& microbatch,
                                MutView x, LossSum& loss) {
  Pass p = pass(microbatch.batch, microbatch.first_sample, 0, false);
  p.most_tokens = plan_.largest_microbatch * plan_.seq_len;  // others' may be larger than this one
  if (has(chunk, embedding_layer)) {
    co_await acquire(step, embedding_layer);
    decoder_.embed(p, values(embedding_layer), microbatch.tokens, x);
    give_back(embedding_layer);
  }
  const Range blocks = blocks_of(chunk);
  for (std::int64_t layer = blocks.begin; layer < blocks.end; ++layer) {
    co_await acquire(step, layer);
    decoder_.block(p, layer, values(layer), x);
    give_back(layer);
  }
  const std::int64_t head = head_layer(decoder_.config());
  if (!has(chunk, head)) co_return;
  co_await acquire(step, head);
  decoder_.head_loss(p, values(head), x, microbatch.labels, loss);
  give_back(head);
}

}  // namespace llm
