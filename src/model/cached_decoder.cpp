#include "src/model/cached_decoder.h"

#include <cstring>

#include "src/model/block_parts.h"
#include "src/model/mlp.h"
#include "tensor/ops/attention_step.h"
#include "tensor/ops/embedding.h"
#include "tensor/upload.h"

namespace llm {

CachedDecoder::CachedDecoder(const Decoder& decoder, std::vector<Values> values,
                             std::int64_t capacity, Queue& queue)
    : decoder_(decoder),
      values_(std::move(values)),
      capacity_(capacity),
      queue_(queue),
      cache_(cache_bytes(decoder.config(), capacity), queue.device()),
      logits_(decoder.config().vocab_size * 4, queue.device()),
      read_(logits_.n_bytes()) {
  const ModelConfig& config = decoder.config();
  CHECK_CONTRACT(config.compute == Dtype::f32, "keys and values are kept in f32");
  CHECK_CONTRACT(config.tp.size == 1, "text needs the whole model in one place");
  CHECK_CONTRACT(capacity >= 1 && capacity <= config.max_seq_len, "a sequence fits the model");
  CHECK_CONTRACT(values_.size() == static_cast<std::size_t>(config.n_layers + 2),
                 "there are values for every layer");
}

std::int64_t CachedDecoder::cache_bytes(const ModelConfig& config, std::int64_t capacity) {
  return config.n_layers * 2 * config.n_kv_heads * capacity * config.head_dim() * 4;
}

MutView CachedDecoder::kept(std::int64_t layer, int which) const {
  const ModelConfig& config = decoder_.config();
  const Shape shape{config.n_kv_heads, capacity_, config.head_dim()};
  return cache_.view(Dtype::f32, shape, (2 * layer + which) * shape.n_elements() * 4);
}

View CachedDecoder::read(std::span<const std::int32_t> tokens) {
  CHECK_CONTRACT(!tokens.empty(), "something is read");
  CHECK_CONTRACT(n_read_ + static_cast<std::int64_t>(tokens.size()) <= capacity_,
                 "a sequence is no longer than its capacity");
  if (n_read_ == 0) {
    read_some(tokens);
  } else {
    for (const std::int32_t& token : tokens) read_some({&token, 1});
  }
  return read_.view(Dtype::f32, {1, decoder_.config().vocab_size});
}

void CachedDecoder::read_some(std::span<const std::int32_t> tokens) {
  const ModelConfig& config = decoder_.config();
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n > n_rows_) {
    scratch_ = Arena(scratch_bytes(config, all_layers(config), 1, n), queue_.device());
    hidden_ = Storage(n * config.hidden_size * 4, queue_.device());
    n_rows_ = n;
  }
  const Pass pass{
      .queue = queue_, .scratch = scratch_, .batch = 1, .seq_len = n, .training = false};
  const MutView x = hidden_.view(Dtype::f32, {n, config.hidden_size});
  const View ids(tokens.data(), {n});
  check_tokens(ids, config.vocab_size);
  const Upload there(queue_, ids);
  embed(pass, there.view(), x);
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) block(pass, layer, x);
  const MutView logits = logits_.view(Dtype::f32, {1, config.vocab_size});
  decoder_.head_logits(pass, values_.back(),
                       part(View(x), (n - 1) * config.hidden_size, {1, config.hidden_size}),
                       logits);
  queue_.read_back("logits_read", logits, [this](View read) {
    std::memcpy(read_.view(Dtype::f32, read.shape()).data(), read.data(),
                static_cast<std::size_t>(read.n_bytes()));
  });
  queue_.finish();
  n_read_ += n;
}

void CachedDecoder::embed(const Pass& pass, View tokens, MutView x) const {
  View positions = decoder_.positions(values_.front());
  if (!positions.empty()) {
    const std::int64_t c = decoder_.config().hidden_size;
    positions = part(positions, n_read_ * c, {pass.seq_len, c});
  }
  embedding_forward(pass.queue, tokens, values_.front()[Role::token_embedding], positions,
                    pass.seq_len, x);
}

/// As Decoder::block, with what attention keeps.
void CachedDecoder::block(const Pass& pass, std::int64_t layer, MutView x) const {
  const ModelConfig& config = decoder_.config();
  const Block block{config, pass, layer, values_[static_cast<std::size_t>(layer + 1)]};
  const AttentionShape shape = block.attention_shape();
  BlockSaved saved;
  saved.x = x;
  saved.middle = x;
  saved.y = x;
  {
    const ArenaScope scope(pass.scratch);
    saved.mean1 = take_mean(config, pass.scratch, block.n());
    saved.rstd1 = pass.scratch.take(Dtype::f32, {block.n()});
    const MutView qkv = block.take_qkv(pass.scratch);
    const MutView attention = block.take_attention_out(pass.scratch);
    const MutView projected = block.take_hidden(pass.scratch);  // and before, what norm1 gives
    norm_forward(config, pass.queue, block.norm1(saved), x, projected);
    linear_forward(pass.queue, projected, block.values[Role::qkv_weight],
                   block.values[Role::qkv_bias], qkv);
    const MutView keys = kept(layer, 0);
    const MutView values = kept(layer, 1);
    const bool is_first = n_read_ == 0;
    if (config.positions == Positions::rotary) {
      if (is_first) {
        rope_forward(pass.queue, shape, config.rope_theta, qkv);
      } else {
        rope_step(pass.queue, shape, config.rope_theta, n_read_, qkv);
      }
    }
    keep_keys_values(pass.queue, shape, qkv, n_read_, keys, values);
    if (is_first) {
      const MutView log_sum_exp = pass.scratch.take(Dtype::f32, {1, config.n_heads, pass.seq_len});
      attention_forward(pass.queue, shape, qkv, block.dropout(DropoutSite::attention_weights),
                        attention, log_sum_exp);
    } else {
      attention_step(pass.queue, shape, qkv, keys, values, n_read_ + 1, attention);
    }
    block.sum_of_products(attention, Role::attention_out_weight, Role::attention_out_bias,
                          projected);
    dropout_forward(pass.queue, block.dropout(DropoutSite::attention_output), pass.seq_len,
                    projected, x, x);
  }
  const ArenaScope scope(pass.scratch);
  take_mlp(block, pass.scratch, saved);
  mlp_forward_half(block, saved, block.take_hidden(pass.scratch));
}

}  // namespace llm
