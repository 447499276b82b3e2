#pragma once
#include "src/model/block_parts.h"

namespace llm {

// The second half of a block: one mlp for every token, or a mixture of experts. Both have the same
// three linear layers; a mixture's go over its grouped rows, expert by expert (ops/router.h).

/// What the mlp half keeps, from any arena.
void take_mlp(const Block& block, Arena& arena, BlockSaved& saved);
/// What its backward needs besides mlp_out.
void take_mlp_deltas(const Block& block, Arena& arena, BlockDeltas& deltas);

/// saved.y = saved.middle + dropout(mlp(norm2(saved.middle))); the sum before dropout passes
/// through `projected`, which may be saved.y.
void mlp_forward_half(const Block& block, const BlockSaved& saved, MutView projected);
/// What mlp_forward_half leaves in take_mlp's views, from saved.middle, with the same bits.
void mlp_recompute(const Block& block, const BlockSaved& saved);

/// From deltas.mlp_out, the gradient of the mlp's output, to the other deltas.
void mlp_backward_input(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas);
void mlp_backward_weight(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                         const Gradients& grads, Write write);
/// dy += the gradient through the mlp and norm2.
void mlp_backward_norm(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                       const Gradients& grads, Write write, MutView dy);

}  // namespace llm
