#include "src/train/generate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/philox.h"

namespace llm {
namespace {

/// An index drawn with probability proportional to exp(logit / temperature).
std::int32_t draw(const float* logits, std::int64_t n, double temperature, double u) {
  const double top = *std::max_element(logits, logits + n);
  std::vector<double> cumulative(static_cast<std::size_t>(n));
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += std::exp((static_cast<double>(logits[i]) - top) / temperature);
    cumulative[static_cast<std::size_t>(i)] = sum;
  }
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), u * sum);
  return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(found - cumulative.begin(), n - 1));
}

}  // namespace

std::string generate(const Decoder& decoder, const AllValues& values, const Tokenizer& tokenizer,
                     const std::string& prompt, const GenerateOptions& options) {
  const ModelConfig& config = decoder.config();
  const std::int64_t window = std::min(options.window, config.max_seq_len);
  std::vector<std::int32_t> ids;
  tokenizer.encode(prompt, ids);
  CHECK_CONTRACT(!ids.empty(), "a prompt has a token");

  Queue queue;
  Arena scratch(scratch_bytes(config, all_layers(config), 1, window));
  const Storage hidden(window * config.hidden_size *
                       static_cast<std::int64_t>(size_of(config.compute)));
  const Storage logits(config.vocab_size * 4);
  const MutView row = logits.view(Dtype::f32, {1, config.vocab_size});
  const std::uint64_t key = mix_key(options.seed, "generate");
  for (std::int64_t i = 0; i < options.n_tokens; ++i) {
    const std::int64_t n = std::min<std::int64_t>(window, static_cast<std::int64_t>(ids.size()));
    const View tokens(ids.data() + (static_cast<std::int64_t>(ids.size()) - n), {n});
    const Pass pass{
        .queue = queue, .scratch = scratch, .batch = 1, .seq_len = n, .training = false};
    const MutView x = hidden.view(config.compute, {n, config.hidden_size});
    decoder.embed(pass, values.front(), tokens, x);
    for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
      decoder.block(pass, layer, values[static_cast<std::size_t>(layer + 1)], x);
    }
    decoder.head_logits(pass, values.back(),
                        part(View(x), (n - 1) * config.hidden_size, {1, config.hidden_size}), row);
    queue.finish();
    const double u = uniform_from(philox_at(key, static_cast<std::uint64_t>(i))[0]);
    // Ids that the tokenizer does not have (a padded vocabulary) are never drawn.
    const std::int64_t n_ids = std::min(config.vocab_size, tokenizer.n_ids());
    const std::int32_t id = draw(row.as<float>(), n_ids, options.temperature, u);
    if (id == options.end_id) break;
    ids.push_back(id);
  }
  std::string text;
  tokenizer.decode(ids, text);
  return text;
}

}  // namespace llm
