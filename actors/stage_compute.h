#pragma once
#include <cstdint>
#include <functional>

#include "actors/messages.h"
#include "schedules/pipeline.h"
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
  struct ForwardWork {
    At at;
    const Microbatch* microbatch;
    View input;  ///< empty on the model's first stage, which embeds the tokens
    std::function<void()> done = nullptr;  ///< of a pair, see beside()
  };
  struct BackwardWork {
    At at;
    Action::Kind kind;  ///< of a backward, or a half
    const Microbatch* microbatch;
    MutView grad;   ///< of the chunk's output, but for a weight half
    LossSum* loss;  ///< the same
    std::function<void()> done = nullptr;
  };
  virtual ~StageCompute() = default;

  /// `loss_scale` multiplies the gradient of each token's loss.
  virtual void begin_step(std::int64_t step, float loss_scale) = 0;
  /// The result stays until release(at).
  virtual Task<MutView> forward(const ForwardWork& work) = 0;
  /// `grad` becomes that of the chunk's input, in place. On the model's last stage it is only set,
  /// and `loss` is set too. What a mixture's routers lose is added to `loss` on every stage. Of the
  /// two halves the input half has all these results, and the weight half the gradients that nobody
  /// waits for.
  virtual Task<> backward(const BackwardWork& work) = 0;
  /// Both, with the same bits, alternating where they wait for other ranks. Each calls `done` where
  /// it is.
  virtual Task<MutView> beside(const ForwardWork& forward, const BackwardWork& backward) = 0;
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
