#pragma once
#include <cstdint>
#include <vector>

#include "src/base/error.h"
#include "src/model/decoder.h"
#include "src/model/init.h"
#include "src/model/parameters.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elementwise.h"

namespace llm {

/// A pass over a whole batch, as tests ask for it.
struct TestBatch {
  std::int64_t batch = 1;
  std::int64_t seq_len = 1;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
  bool training = true;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sample = 0;
};

/// All layers of a decoder in one process, with one tensor for each parameter and each use: what
/// stages, reducers and optimizers share out, here in plain calls.
class WholeModel {
 public:
  explicit WholeModel(const ModelConfig& config)
      : decoder(config), specs(parameters(config)), uses(parameter_uses(config)) {
    for (const ParameterSpec& spec : specs) {
      storages_.emplace_back(spec.n_elements() * 4);
      values.push_back(storages_.back().view(Dtype::f32, spec.shape));
    }
    for (const ParameterUse& use : uses) {
      const Shape& shape = specs[use.parameter].shape;
      storages_.emplace_back(shape.n_elements() * 4);
      use_grads.push_back(storages_.back().view(Dtype::f32, shape));
    }
  }

  void start(std::uint64_t seed) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      initialize(specs[i], seed, {0, specs[i].n_elements()}, values[i]);
    }
  }

  /// Losses of the batch; gradients of `scale` times their sum go to use_grads.
  LossSum forward_backward(const TestBatch& batch, float scale, Write write) {
    const ModelConfig& config = decoder.config();
    prepare(batch);
    Pass pass = pass_of(batch);
    pass.labels = labels_of(batch);
    pass.loss_scale = scale;
    pass.router_losses = &router_losses;
    router_losses = {};
    const View tokens = tokens_of(batch);
    const std::int64_t head = head_layer(config);
    saved.clear();
    View x = decoder.embed_forward(pass, layer(embedding_layer), tokens, saved_arena);
    for (std::int64_t i = 0; i < config.n_layers; ++i) {
      saved.push_back(decoder.block_forward(pass, i, layer(i), x, saved_arena));
      x = saved.back().y;
    }
    LossSum loss;
    const Storage dx_storage(batch.batch * batch.seq_len * config.hidden_size * 4);
    const MutView dx = dx_storage.view(Dtype::f32, x.shape());
    decoder.head_forward_backward(pass, layer(head), x, labels_of(batch), scale, grads(head), write,
                                  dx, loss);
    for (std::int64_t i = config.n_layers - 1; i >= 0; --i) {
      backward_block(pass, i, saved[static_cast<std::size_t>(i)], write, dx);
    }
    decoder.embed_backward(pass, tokens, dx, grads(embedding_layer), write, write);
    queue.finish();
    return loss;
  }

  /// The losses alone, by the path that keeps nothing.
  LossSum loss(const TestBatch& batch) {
    LossSum loss;
    forward(batch, [&](const Pass& pass, MutView x) {
      decoder.head_loss(pass, layer(head_layer(decoder.config())), x, labels_of(batch), loss);
    });
    return loss;
  }

  /// Logits (n, V) of every token of the batch.
  std::vector<float> logits(const TestBatch& batch) {
    const std::int64_t n = batch.batch * batch.seq_len;
    const std::int64_t v = decoder.config().vocab_size;
    std::vector<float> out(static_cast<std::size_t>(n * v));
    forward(batch, [&](const Pass& pass, MutView x) {
      decoder.head_logits(pass, layer(head_layer(decoder.config())), x,
                          MutView(out.data(), {n, v}));
    });
    return out;
  }

  /// A parameter's gradient: the sum over its uses.
  std::vector<float> gradient(std::size_t parameter) const {
    std::vector<float> sum(static_cast<std::size_t>(specs[parameter].n_elements()));
    for (std::size_t use = 0; use < uses.size(); ++use) {
      if (uses[use].parameter != parameter) continue;
      const auto* grad = use_grads[use].as<float>();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += grad[i];
    }
    return sum;
  }

  std::size_t find(Role role, std::int64_t in_layer) const {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].role == role && specs[i].layer == in_layer) return i;
    }
    throw ContractBroken("no such parameter");
  }

  Values layer(std::int64_t index) const {
    const std::vector<View> views(values.begin(), values.end());
    return layer_values(uses, index, views);
  }
  Gradients grads(std::int64_t index) const { return layer_gradients(uses, index, use_grads); }

  Decoder decoder;
  std::vector<ParameterSpec> specs;
  std::vector<ParameterUse> uses;
  std::vector<MutView> values;     // one a parameter
  std::vector<MutView> use_grads;  // one a use
  Arena saved_arena;
  Arena scratch;
  Arena deltas;
  Queue queue;
  std::vector<BlockSaved> saved;  // of the latest forward_backward, by block
  RouterLosses router_losses;     // of a mixture, in it
  bool split_backward = false;    // by block_backward_input and block_backward_weight

 private:
  Pass pass_of(const TestBatch& batch) {
    return {.queue = queue,
            .scratch = scratch,
            .batch = batch.batch,
            .seq_len = batch.seq_len,
            .training = batch.training,
            .seed = batch.seed,
            .step = batch.step,
            .first_sample = batch.first_sample};
  }
  static View tokens_of(const TestBatch& batch) {
    return View(batch.tokens.data(), {batch.batch * batch.seq_len});
  }
  static View labels_of(const TestBatch& batch) {
    return View(batch.labels.data(), {batch.batch * batch.seq_len});
  }

  /// Arenas exactly as large as planned: one byte more throws.
  void prepare(const TestBatch& batch) {
    const ModelConfig& config = decoder.config();
    const Range layers = all_layers(config);
    saved_arena = Arena(saved_bytes(config, layers, batch.batch, batch.seq_len));
    scratch = Arena(scratch_bytes(config, layers, batch.batch, batch.seq_len));
    deltas = Arena(delta_bytes(config, batch.batch, batch.seq_len));
  }

  void backward_block(const Pass& pass, std::int64_t i, const BlockSaved& kept, Write write,
                      MutView dx) {
    if (!split_backward) {
      decoder.block_backward(pass, i, layer(i), kept, grads(i), write, dx);
      return;
    }
    const BlockDeltas block_deltas =
        decoder.block_backward_input(pass, i, layer(i), kept, grads(i), write, dx, deltas);
    decoder.block_backward_weight(pass, layer(i), kept, block_deltas, grads(i), write);
    deltas.release_to(0);
  }

  template <typename Head>
  void forward(const TestBatch& batch, const Head& head) {
    const ModelConfig& config = decoder.config();
    prepare(batch);
    const Pass pass = pass_of(batch);
    const Storage storage(batch.batch * batch.seq_len * config.hidden_size * 4);
    const MutView x = storage.view(Dtype::f32, {batch.batch * batch.seq_len, config.hidden_size});
    decoder.embed(pass, layer(embedding_layer), tokens_of(batch), x);
    for (std::int64_t i = 0; i < config.n_layers; ++i) decoder.block(pass, i, layer(i), x);
    head(pass, x);
    queue.finish();
  }

  std::vector<Storage> storages_;
};

}  // namespace llm
