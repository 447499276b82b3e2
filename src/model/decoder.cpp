#include "src/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "src/model/pass_parts.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/upload.h"

namespace llm {
namespace {

/// Vaswani et al. 2017, equation in section 3.5, with the deviation at which embeddings start: a
/// sine of amplitude a has root mean square a / sqrt(2).
Storage sinusoid_table(const ModelConfig& config, Device device) {
  constexpr double amplitude = 0.02 * 1.4142135623730951;
  const std::int64_t c = config.hidden_size;
  const Storage sines(config.max_seq_len * c * 4);
  auto* table = sines.view(Dtype::f32, {config.max_seq_len, c}).as<float>();
  for (std::int64_t t = 0; t < config.max_seq_len; ++t) {
    for (std::int64_t i = 0; i < c; ++i) {
      const double exponent = static_cast<double>(i / 2 * 2) / static_cast<double>(c);
      const double angle = static_cast<double>(t) / std::pow(10000.0, exponent);
      const double wave = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      table[t * c + i] = static_cast<float>(amplitude * wave);
    }
  }
  const Shape shape{config.max_seq_len, c};
  Storage storage(position_table_bytes(config), device);
  Queue queue(device);
  const Upload exact(queue, sines.view(Dtype::f32, shape));
  convert(queue, exact.view(), storage.view(config.compute, shape));
  queue.finish();
  return storage;
}

/// The final norm in one pass, its statistics in scratch.
NormPart final_norm(const ModelConfig& config, const Values& values, Arena& scratch,
                    std::int64_t n) {
  return {values[Role::final_norm_weight], values[Role::final_norm_bias],
          take_mean(config, scratch, n), scratch.take(Dtype::f32, {n})};
}

void sum_losses(Queue& queue, View losses, View labels, LossSum& loss) {
  // A device's labels are read first.
  const auto ids = std::make_shared<std::vector<std::int32_t>>();
  if (queue.device() != Device::cpu) {
    queue.read_back("labels_read", labels, [ids](View read) {
      ids->assign(read.as<std::int32_t>(), read.as<std::int32_t>() + read.n_elements());
    });
  }
  queue.read_back("loss_sum", losses, [ids, labels, &loss](View read) {
    const auto* each = read.as<float>();
    const auto* label = ids->empty() ? labels.as<std::int32_t>() : ids->data();
    LossSum total;
    for (std::int64_t i = 0; i < read.n_elements(); ++i) {
      if (label[i] == ignored_label) continue;
      total.sum += static_cast<double>(each[i]);
      ++total.n_valid;
    }
    loss.sum = total.sum;
    loss.n_valid = total.n_valid;
  });
}

TablePart table_part(const ModelConfig& config) {
  return {config.local_tokens().begin, config.vocab_size};
}

/// The losses of some rows from this rank's logits, and where dlogits is not empty its gradient.
void row_losses(const ModelConfig& config, const Pass& pass, View labels, float scale,
                MutView logits, MutView dlogits, MutView losses) {
  Queue& queue = pass.queue;
  if (pass.sums == nullptr) {
    if (dlogits.empty()) {
      cross_entropy_forward(queue, logits, labels, losses);
    } else {
      cross_entropy_forward_backward(queue, labels, scale, logits, dlogits, losses);
    }
    return;
  }
  const ArenaScope scope(pass.scratch);
  const Range own = config.local_tokens();
  const VocabularyPart part_of{own.begin, own.size(), config.vocab_size};
  const std::int64_t n = logits.shape()[0];
  const MutView all = pass.scratch.take(Dtype::f32, {pass.sums->size(), n, 2});
  cross_entropy_statistics(queue, logits, labels, part_of,
                           part(all, pass.sums->rank() * n * 2, {n, 2}));
  pass.sums->all_gather(queue, all);
  cross_entropy_of_parts(queue, all, labels, part_of, scale, logits, dlogits, losses);
}

MutView take_rows(const ModelConfig& config, const Pass& pass) {
  return pass.scratch.take(config.compute, {pass.n_tokens(), config.hidden_size});
}

/// All tokens' rows where `own` (n_own, C) are this rank's: in scratch where they are not all.
View all_rows(const ModelConfig& config, const Pass& pass, View own) {
  if (!config.tp.cuts_rows) return own;
  const MutView all = take_rows(config, pass);
  copy(pass.queue, own, own_rows(config, all));
  gather_over_group(config, pass, all);
  return all;
}

/// Rows [begin, begin + n) of a matrix.
MutView rows_of(MutView matrix, std::int64_t begin, std::int64_t n) {
  return part(matrix, begin * matrix.shape()[1], {n, matrix.shape()[1]});
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, Device device) : config_(config) {
  check(config);
  if (config.positions == Positions::sinusoidal) sinusoids_ = sinusoid_table(config, device);
}

View Decoder::positions(const Values& values) const {
  if (config_.positions != Positions::sinusoidal) return values[Role::position_embedding];
  return sinusoids_.view(config_.compute, {config_.max_seq_len, config_.hidden_size});
}

void Decoder::embed(const Pass& pass, const Values& values, View tokens, MutView y) const {
  CHECK_CONTRACT(config_.positions == Positions::rotary || pass.seq_len <= config_.max_seq_len,
                 "a sequence fits the position table");
  const View positions = this->positions(values);
  const Dropout dropout = dropout_at(config_, pass, embedding_layer, DropoutSite::embedding);
  if (pass.sums == nullptr) {
    embedding_forward(pass.queue, tokens, values[Role::token_embedding], positions, pass.seq_len,
                      y);
  } else {
    // One rank has a token's row, and the others add zeros to it.
    const ArenaScope scope(pass.scratch);
    const MutView all = config_.tp.cuts_rows ? take_rows(config_, pass) : y;
    embedding_part_forward(pass.queue, tokens, values[Role::token_embedding],
                           config_.local_tokens().begin, config_.vocab_size, all);
    sum_over_group(config_, pass, all);
    const MutView own = own_rows(config_, all);
    if (!positions.empty()) {
      add_positions(pass.queue, positions, pass.seq_len, dropout.first_row, own);
    }
    if (config_.tp.cuts_rows) {
      dropout_forward(pass.queue, dropout, pass.seq_len, own, View(), y);
      return;
    }
  }
  if (dropout.p > 0) dropout_forward(pass.queue, dropout, pass.seq_len, y, View(), y);
}

MutView Decoder::embed_forward(const Pass& pass, const Values& values, View tokens,
                               Arena& saved) const {
  const std::int64_t n_own = config_.tp.rows(pass.n_tokens()).size();
  const MutView y = saved.take(config_.compute, {n_own, config_.hidden_size});
  embed(pass, values, tokens, y);
  return y;
}

void Decoder::embed_backward(const Pass& pass, View tokens, MutView dy, const Gradients& grads,
                             Write write_table, Write write_positions) const {
  const Dropout dropout = dropout_at(config_, pass, embedding_layer, DropoutSite::embedding);
  if (dropout.p > 0) dropout_backward(pass.queue, dropout, pass.seq_len, dy, dy);
  const MutView table = grads[Role::token_embedding];
  const MutView positions = grads[Role::position_embedding];
  if (write_table == Write::set && !table.empty()) fill(pass.queue, 0, table);
  if (write_positions == Write::set && !positions.empty()) fill(pass.queue, 0, positions);
  if (table.empty() && positions.empty()) return;
  const ArenaScope scope(pass.scratch);
  embedding_backward(pass.queue, tokens, all_rows(config_, pass, dy), pass.seq_len, Write::add,
                     table, positions, table_part(config_));
}

void Decoder::embed_table_backward(const Pass& pass, View tokens, View dy, MutView table) const {
  const ArenaScope scope(pass.scratch);
  embedding_backward(pass.queue, tokens, all_rows(config_, pass, dy), pass.seq_len, Write::add,
                     table, MutView(), table_part(config_));
}

void Decoder::head_forward_backward(const Pass& pass, const Values& values, View x, View labels,
                                    float scale, const Gradients& grads, Write write, MutView dx,
                                    LossSum& loss) const {
  Queue& queue = pass.queue;
  const std::int64_t n = pass.n_tokens();
  const std::int64_t c = config_.hidden_size;
  const ArenaScope scope(pass.scratch);
  const NormPart norm = final_norm(config_, values, pass.scratch, config_.tp.rows(n).size());
  const MutView normed = pass.scratch.take(config_.compute, {n, c});
  const MutView dnormed = pass.scratch.take(config_.compute, {n, c});
  const MutView losses = pass.scratch.take(Dtype::f32, {n});
  const std::int64_t chunk = std::min(n, head_chunk_rows(config_));
  const Shape chunk_shape{chunk, config_.local_vocab_size()};
  const MutView logits = pass.scratch.take(Dtype::f32, chunk_shape);
  const bool in_place = config_.compute == Dtype::f32;
  const MutView all_dlogits = in_place ? logits : pass.scratch.take(config_.compute, chunk_shape);

  normalize(config_, pass, norm, x, normed);
  for (std::int64_t row = 0; row < n; row += chunk) {
    const std::int64_t n_rows = std::min(chunk, n - row);
    const MutView dlogits = rows_of(all_dlogits, 0, n_rows);
    linear_forward(queue, rows_of(normed, row, n_rows), values[Role::head_weight],
                   values[Role::head_bias], rows_of(logits, 0, n_rows));
    row_losses(config_, pass, part(labels, row, {n_rows}), scale, rows_of(logits, 0, n_rows),
               dlogits, part(losses, row, {n_rows}));
    linear_backward_input(queue, dlogits, values[Role::head_weight], Write::set,
                          rows_of(dnormed, row, n_rows));
    linear_backward_weight(queue, rows_of(normed, row, n_rows), dlogits,
                           row == 0 ? write : Write::add, grads[Role::head_weight],
                           grads[Role::head_bias]);
  }
  sum_over_group(config_, pass, dnormed);
  norm_backward(
      config_, queue, norm, x, own_rows(config_, dnormed),
      {Write::set, dx, write, grads[Role::final_norm_weight], grads[Role::final_norm_bias]});
  sum_losses(queue, losses, labels, loss);
}

void Decoder::head_loss(const Pass& pass, const Values& values, View x, View labels,
                        LossSum& loss) const {
  Queue& queue = pass.queue;
  const std::int64_t n = pass.n_tokens();
  const ArenaScope scope(pass.scratch);
  const NormPart norm = final_norm(config_, values, pass.scratch, config_.tp.rows(n).size());
  const MutView normed = pass.scratch.take(config_.compute, {n, config_.hidden_size});
  const MutView losses = pass.scratch.take(Dtype::f32, {n});
  const std::int64_t chunk = std::min(n, head_chunk_rows(config_));
  const MutView logits = pass.scratch.take(Dtype::f32, {chunk, config_.local_vocab_size()});

  normalize(config_, pass, norm, x, normed);
  for (std::int64_t row = 0; row < n; row += chunk) {
    const std::int64_t n_rows = std::min(chunk, n - row);
    const MutView some = rows_of(logits, 0, n_rows);
    linear_forward(queue, rows_of(normed, row, n_rows), values[Role::head_weight],
                   values[Role::head_bias], some);
    row_losses(config_, pass, part(labels, row, {n_rows}), 1, some, MutView(),
               part(losses, row, {n_rows}));
  }
  sum_losses(queue, losses, labels, loss);
}

void Decoder::head_logits(const Pass& pass, const Values& values, View x, MutView logits) const {
  const std::int64_t n = x.shape()[0];
  CHECK_CONTRACT(n <= pass.n_tokens(), "logits are asked for rows of this pass");
  CHECK_CONTRACT(config_.tp.size == 1, "text needs the whole vocabulary on one rank");
  const ArenaScope scope(pass.scratch);
  const NormPart norm = final_norm(config_, values, pass.scratch, n);
  const MutView normed = pass.scratch.take(config_.compute, {n, config_.hidden_size});
  norm_forward(config_, pass.queue, norm, x, normed);
  linear_forward(pass.queue, normed, values[Role::head_weight], values[Role::head_bias], logits);
}

std::int64_t position_table_bytes(const ModelConfig& config) {
  if (config.positions != Positions::sinusoidal) return 0;
  return config.max_seq_len * config.hidden_size *
         static_cast<std::int64_t>(size_of(config.compute));
}

std::int64_t head_chunk_rows(const ModelConfig& config) {
  constexpr std::int64_t n_logits = std::int64_t{1} << 25;  // 128 MiB
  return std::max<std::int64_t>(n_logits / config.vocab_size / 64 * 64, 64);
}

}  // namespace llm
