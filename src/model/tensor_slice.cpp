#include "src/model/tensor_slice.h"

#include <algorithm>

namespace llm {
namespace {

std::int64_t n_columns_of(const Shape& shape) {
  return shape.n_dims() == 2 ? shape[1] : 1;
}

void set_shape(ParameterSpec& spec, std::int64_t n_rows, std::int64_t n_columns) {
  spec.shape = spec.shape.n_dims() == 2 ? Shape{n_rows, n_columns} : Shape{n_rows};
}

/// The rank has these rows of the whole, one after the other, and then `n_padding` rows of zeros.
void take_rows(ParameterSpec& spec, const std::vector<Range>& rows, std::int64_t n_padding = 0) {
  const std::int64_t n_columns = n_columns_of(spec.shape);
  Slice slice{.whole_shape = spec.shape, .columns = {0, n_columns}};
  std::int64_t at = 0;
  for (const Range& some : rows) {
    slice.rows.push_back({{at, at + some.size()}, some.begin});
    at += some.size();
  }
  at += n_padding;
  spec.slice = std::move(slice);
  set_shape(spec, at, n_columns);
  spec.n_counted = spec.n_elements();
}

void take_columns(ParameterSpec& spec, Range columns) {
  const std::int64_t n_rows = spec.shape[0];
  spec.slice = Slice{.whole_shape = spec.shape, .columns = columns, .rows = {{{0, n_rows}, 0}}};
  set_shape(spec, n_rows, columns.size());
  spec.n_counted = spec.n_elements();
}

/// Where fewer key heads than ranks are there, those that share one have it all; one counts it.
void take_heads(const ModelConfig& config, ParameterSpec& spec) {
  const std::int64_t d = config.head_dim();
  const std::int64_t n_q = config.n_local_heads() * d;
  const std::int64_t n_kv = config.n_local_kv_heads() * d;
  const std::int64_t first_q = config.first_local_head() * d;
  const std::int64_t first_kv = config.first_local_kv_head() * d;
  const std::int64_t keys = config.n_heads * d;
  const std::int64_t values = keys + config.n_kv_heads * d;
  take_rows(spec, {{first_q, first_q + n_q},
                   {keys + first_kv, keys + first_kv + n_kv},
                   {values + first_kv, values + first_kv + n_kv}});
  if (config.tp.rank % config.n_kv_sharers() != 0) {
    spec.n_counted = n_q * n_columns_of(spec.shape);
  }
}

void take_vocabulary(const ModelConfig& config, ParameterSpec& spec) {
  const Range own = config.local_tokens();
  take_rows(spec, {own}, config.local_vocab_size() - own.size());
}

void take_experts(const ModelConfig& config, ParameterSpec& spec) {
  const Range own = config.local_experts();
  if (own.size() == config.n_experts) return;
  const std::int64_t n_rows = spec.shape[0] / config.n_experts;
  take_rows(spec, {{own.begin * n_rows, own.end * n_rows}});
}

}  // namespace

ModelConfig whole_model(ModelConfig config) {
  config.tp = {};
  config.ep = {};
  return config;
}

void take_slice(const ModelConfig& config, ParameterSpec& spec) {
  spec.n_counted = spec.n_elements();
  if (is_of_experts(config, spec.role)) return take_experts(config, spec);
  if (config.tp.size == 1) return;
  const auto part = [&](std::int64_t n) {
    const std::int64_t own = n / config.tp.size;
    return Range{config.tp.rank * own, (config.tp.rank + 1) * own};
  };
  switch (spec.role) {
    case Role::token_embedding:
    case Role::head_weight:
    case Role::head_bias:
      return take_vocabulary(config, spec);
    case Role::qkv_weight:
    case Role::qkv_bias:
      return take_heads(config, spec);
    case Role::gate_weight:
    case Role::gate_bias:
    case Role::up_weight:
    case Role::up_bias:
      return take_rows(spec, {part(config.intermediate_size)});
    case Role::attention_out_weight:
      return take_columns(spec, part(config.n_heads * config.head_dim()));
    case Role::down_weight:
      return take_columns(spec, part(config.intermediate_size));
    default:
      if (config.tp.rank > 0) spec.n_counted = 0;
  }
}

void read_slice(const ParameterSpec& spec, Range elements, const WholeValues& source,
                MutView values) {
  if (!spec.slice) {
    source(spec, elements, values);
    return;
  }
  constexpr std::int64_t n_rows_at_a_time = 256;
  const Slice& slice = *spec.slice;
  ParameterSpec whole = spec;
  whole.shape = slice.whole_shape;
  whole.slice.reset();
  const std::int64_t width = slice.columns.size();
  const std::int64_t n_columns = n_columns_of(slice.whole_shape);
  auto* const out = values.as<float>();
  std::fill_n(out, elements.size(), 0.0f);
  std::vector<float> some;
  for (const Slice::Rows& rows : slice.rows) {
    const std::int64_t last = std::min(rows.local.end, (elements.end + width - 1) / width);
    for (std::int64_t row = std::max(rows.local.begin, elements.begin / width); row < last;
         row += n_rows_at_a_time) {
      const std::int64_t n = std::min(n_rows_at_a_time, last - row);
      const std::int64_t first = (rows.whole_begin + row - rows.local.begin) * n_columns;
      some.resize(static_cast<std::size_t>(n * n_columns));
      source(whole, {first, first + n * n_columns}, MutView(some.data(), {n * n_columns}));
      for (std::int64_t r = 0; r < n; ++r) {
        const std::int64_t begin = std::max((row + r) * width, elements.begin);
        const std::int64_t end = std::min((row + r + 1) * width, elements.end);
        if (begin >= end) continue;
        const float* const from = some.data() + r * n_columns + slice.columns.begin;
        std::copy_n(from + begin - (row + r) * width, end - begin, out + begin - elements.begin);
      }
    }
  }
}

void scatter(const ParameterSpec& spec, Range elements, const float* values, float* whole) {
  if (!spec.slice) {
    std::copy_n(values, elements.size(), whole + elements.begin);
    return;
  }
  const std::int64_t n_columns = n_columns_of(spec.shape);
  const std::int64_t whole_columns = n_columns_of(spec.slice->whole_shape);
  for (const Slice::Rows& rows : spec.slice->rows) {
    const std::int64_t first = std::max(rows.local.begin, elements.begin / n_columns);
    const std::int64_t last = std::min(rows.local.end, (elements.end + n_columns - 1) / n_columns);
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t begin = std::max(row * n_columns, elements.begin);
      const std::int64_t end = std::min((row + 1) * n_columns, elements.end);
      const std::int64_t whole_row = rows.whole_begin + row - rows.local.begin;
      std::copy_n(
          values + begin - elements.begin, end - begin,
          whole + whole_row * whole_columns + spec.slice->columns.begin + begin - row * n_columns);
    }
  }
}

}  // namespace llm
