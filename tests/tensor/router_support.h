#pragma once
#include <utility>

#include "tensor/ops/router.h"
#include "tests/tensor/support.h"

namespace llm::test {

/// A routing that owns its tensors, of these logits (n, E).
class Routed {
 public:
  Routed(const RouterShape& s, Tensor logits)
      : shape(s),
        logits_(std::move(logits)),
        experts_({s.n_tokens, s.top_k}, Dtype::i32),
        weights_({s.n_tokens, s.top_k}),
        rows_({s.n_tokens, s.top_k}, Dtype::i32),
        visits_({s.n_rows()}, Dtype::i32),
        begins_({s.n_own() + 1}, Dtype::i32),
        counts_({s.n_sequences(), s.n_experts}, Dtype::i32),
        routing{logits_, experts_, weights_, rows_, visits_, begins_, counts_} {
    Queue queue;
    route(queue, shape, routing);
    queue.finish();
  }
  std::int32_t expert(std::int64_t token, std::int64_t choice) const {
    return routing.experts.as<std::int32_t>()[token * shape.top_k + choice];
  }
  std::int32_t visit(std::int64_t row) const { return routing.visits.as<std::int32_t>()[row]; }
  std::int32_t begin(std::int64_t e) const { return routing.begins.as<std::int32_t>()[e]; }
  std::int32_t count(std::int64_t sequence, std::int64_t e) const {
    return routing.counts.as<std::int32_t>()[sequence * shape.n_experts + e];
  }

  RouterShape shape;

 private:
  Tensor logits_, experts_, weights_, rows_, visits_, begins_, counts_;

 public:
  Routing routing;
};

}  // namespace llm::test
