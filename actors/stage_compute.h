#pragma once
#include <cstdint>

#include "actors/messages.h"
#include "src/model/decoder.h"
#include "src/rt/task.h"
#include "tensor/view.h"

namespace llm {

/// What a stage's actions compute on a rank's model chunks. Each task ends when its work is
/// enqueued on the compute queue: at once, or when the parameters it reads are there. What it is
/// given stays until that work is done.
///   m      the microbatch among the rank's A of the step
///   chunk  of the rank; activations and their gradients are (n, C)
class StageCompute {
 public:
  struct At {
    std::int64_t step;
    int m;
    int chunk;
  };
  virtual ~StageCompute() = default;

  /// `loss_scale` multiplies the gradient of each token's loss.
  virtual void begin_step(std::int64_t step, float loss_scale) = 0;
  /// `input` is empty on the model's first stage, which embeds the tokens. The result stays until
  /// release(at).
  virtual Task<MutView> forward(At at, const Microbatch& microbatch, View input) = 0;
  /// `grad`, of the chunk's output, becomes that of its input, in place. On the model's last stage
  /// it is only set, and `loss` is set too. What a mixture's routers lose is added to `loss` on
  /// every stage.
  virtual Task<> backward(At at, const Microbatch& microbatch, MutView grad, LossSum& loss) = 0;
  /// backward in two halves: this one has its arguments and results, and the other the gradients
  /// that nobody waits for.
  virtual Task<> backward_input(At at, const Microbatch& microbatch, MutView grad,
                                LossSum& loss) = 0;
  virtual Task<> backward_weight(At at) = 0;
  /// Nobody reads the chunk's activations of this microbatch any more.
  virtual void release(const At& at) = 0;
  /// On the rank of the head, where another rank embeds with a tied table: `grad` as the first
  /// stage's backward left it joins the table's gradient. Microbatches come in order.
  virtual void embedding_backward(const At& at, const Microbatch& microbatch, View grad) = 0;
  /// Forward without anything kept: x becomes the chunk's output in place. On the model's first
  /// stage it is only set; on the last one `loss` is set. Parameters are those of `step`.
  virtual Task<> validate(std::int64_t step, int chunk, const Microbatch& microbatch, MutView x,
                          LossSum& loss) = 0;
};

}  // namespace llm
