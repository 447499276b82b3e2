#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "src/model/decoder.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// A decoder that reads one sequence token by token and keeps each block's keys and values: a token
/// costs one row of every product, however long the sequence is. The logits are those of the whole
/// sequence at once, within rounding (1e-5); those of the first call have its bits. f32, and the
/// whole model in one place.
class CachedDecoder {
 public:
  /// `decoder`, `queue` and what `values` (by layer + 1) view outlive it.
  ///   capacity   tokens of a sequence at most: config.max_seq_len or fewer
  CachedDecoder(const Decoder& decoder, std::vector<Values> values, std::int64_t capacity,
                Queue& queue);
  /// Reads `tokens` (at least one, ids of the model) after those before, and runs the queue to its
  /// end. The logits (1, V) are of what follows the last one; valid until the next call.
  View read(std::span<const std::int32_t> tokens);
  /// Begins another sequence.
  void restart() { n_read_ = 0; }
  std::int64_t n_read() const { return n_read_; }
  std::int64_t capacity() const { return capacity_; }
  /// Of keys and values.
  static std::int64_t cache_bytes(const ModelConfig& config, std::int64_t capacity);

 private:
  void read_some(std::span<const std::int32_t> tokens);
  void embed(const Pass& pass, View tokens, MutView x) const;
  void block(const Pass& pass, std::int64_t layer, MutView x) const;
  MutView kept(std::int64_t layer, int which) const;

  const Decoder& decoder_;
  const std::vector<Values> values_;
  const std::int64_t capacity_;
  Queue& queue_;
  Storage cache_;   // (n_layers, 2, n_kv_heads, capacity, head_dim): keys, then values
  Storage logits_;  // where the queue works
  Storage read_;    // the same, on the CPU
  Storage hidden_;
  Arena scratch_;
  std::int64_t n_rows_ = 0;  // of hidden_ and scratch_
  std::int64_t n_read_ = 0;
};

}  // namespace llm
