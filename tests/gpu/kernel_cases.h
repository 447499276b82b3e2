#pragma once
#include <cstdint>
#include <vector>

#include "tests/gpu/kernel_check.h"

namespace llm::gpu {

using Views = std::vector<MutView>;
using Values = std::vector<Doubles>;

struct Sizes {
  std::int64_t batch, seq_len, width, mlp, n_classes, n_loss_rows, n_heads, n_kv_heads, n_adamw;
  std::int64_t n() const { return batch * seq_len; }
};

/// Of a large product's rows float64 looks at so many, and of attention's groups of heads.
inline constexpr std::size_t n_product_rows = 48;
inline constexpr std::size_t n_head_groups = 3;

inline std::size_t count(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
/// a += b.
inline void add_to(Doubles& a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}
/// to = (or +=) from.
inline void write_to(Doubles& to, Write write, const Doubles& from) {
  if (write == Write::add) return add_to(to, from);
  to = from;
}

void check_attention(KernelCheck& check, const Sizes& s, Dtype dtype, std::int64_t head_dim,
                     float p);
void check_attention_step(KernelCheck& check, const Sizes& s);
void check_mixture(KernelCheck& check, const Sizes& s, Dtype dtype);
void check_expert_rows(KernelCheck& check, const Sizes& s, Dtype dtype);

}  // namespace llm::gpu
