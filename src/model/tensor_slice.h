#pragma once
#include <cstdint>
#include <functional>

#include "src/model/parameters.h"

namespace llm {

// Which part of each parameter a rank has (ModelConfig::tp and ep): heads' rows of q, k
// and v, columns of the projection after them; rows of the mlp's first layers, columns of its last,
// or whole experts of a mixture; rows of embedding and head; of everything else all.

/// Cuts a spec of the whole model to the rank's part.
void take_slice(const ModelConfig& config, ParameterSpec& spec);

/// The model as one rank has it all.
ModelConfig whole_model(ModelConfig config);

/// Elements of a whole tensor, from wherever they come, into values f32.
using WholeValues = std::function<void(const ParameterSpec& whole, Range elements, MutView values)>;
/// Elements `elements` of a rank's tensor, from those of the whole; padding is 0.
void read_slice(const ParameterSpec& spec, Range elements, const WholeValues& source,
                MutView values);

/// Puts elements `elements` of a rank's tensor, given as f32 `values`, where they belong in the
/// whole tensor; padding is left out.
void scatter(const ParameterSpec& spec, Range elements, const float* values, float* whole);

}  // namespace llm
