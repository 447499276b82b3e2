#include "src/model/decoder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "tests/model/configs.h"
#include "tests/model/whole_model.h"

namespace llm {
namespace {

/// Some batch of these extents: drawn tokens, labels of which every fifth is ignored.
TestBatch some_batch(const ModelConfig& config, std::int64_t batch, std::int64_t seq_len) {
  TestBatch out{.batch = batch, .seq_len = seq_len, .tokens = {}, .labels = {}, .seed = 11};
  for (std::int64_t i = 0; i < batch * seq_len; ++i) {
    const PhiloxBlock drawn = philox_at(99, static_cast<std::uint64_t>(i));
    const auto vocab_size = static_cast<std::uint32_t>(config.vocab_size);
    out.tokens.push_back(static_cast<std::int32_t>(drawn[0] % vocab_size));
    out.labels.push_back(i % 5 == 4 ? ignored_label
                                    : static_cast<std::int32_t>(drawn[1] % vocab_size));
  }
  return out;
}

/// Samples [begin, end) of a batch, as a microbatch that knows where it stands.
TestBatch samples(const TestBatch& batch, std::int64_t begin, std::int64_t end) {
  TestBatch out = batch;
  const auto first = begin * batch.seq_len;
  const auto last = end * batch.seq_len;
  out.batch = end - begin;
  out.first_sample = batch.first_sample + begin;
  out.tokens.assign(batch.tokens.begin() + first, batch.tokens.begin() + last);
  out.labels.assign(batch.labels.begin() + first, batch.labels.begin() + last);
  return out;
}

/// Weights wide enough that attention is far from uniform.
void start_wide(WholeModel& model) {
  model.start(5);
  for (std::size_t i = 0; i < model.specs.size(); ++i) {
    auto* values = model.values[i].as<float>();
    for (std::int64_t k = 0; k < model.specs[i].n_elements(); ++k) {
      const PhiloxBlock drawn = philox_at(i, static_cast<std::uint64_t>(k));
      const bool is_matrix = model.specs[i].init.deviation > 0;
      values[k] = is_matrix ? values[k] * 12 : values[k] + 0.4f * (uniform_from(drawn[0]) - 0.5f);
    }
  }
}

std::vector<std::vector<float>> gradients(const WholeModel& model) {
  std::vector<std::vector<float>> grads;
  for (std::size_t i = 0; i < model.specs.size(); ++i) grads.push_back(model.gradient(i));
  return grads;
}

double relative_distance(const std::vector<std::vector<float>>& a,
                         const std::vector<std::vector<float>>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      const double d = static_cast<double>(a[i][k]) - static_cast<double>(b[i][k]);
      difference += d * d;
      norm += static_cast<double>(b[i][k]) * static_cast<double>(b[i][k]);
    }
  }
  return std::sqrt(difference / norm);
}

/// What the backward differentiates: the losses and, in a mixture, c times the router's.
double whole_loss(WholeModel& model, const TestBatch& batch) {
  const RouterWeights& c = model.decoder.config().router_weights;
  const double losses = model.forward_backward(batch, 1, Write::set).sum;
  return losses + double{c.balance} * model.router_losses.balance +
         double{c.z} * model.router_losses.z;
}

/// The experts that the tokens of the latest pass visited.
std::vector<std::int32_t> visited(const WholeModel& model) {
  std::vector<std::int32_t> experts;
  for (const BlockSaved& block : model.saved) {
    const View chosen = block.routing.experts;
    if (chosen.empty()) continue;
    const auto* const begin = chosen.as<std::int32_t>();
    experts.insert(experts.end(), begin, begin + chosen.n_elements());
  }
  return experts;
}

/// The slope of the loss when parameter i moves by step * direction either way; NaN where a token
/// then visits other experts than at the start, since the loss jumps there.
double central_difference(WholeModel& model, const TestBatch& batch, std::size_t i,
                          const std::vector<float>& direction, double step) {
  whole_loss(model, batch);
  const std::vector<std::int32_t> experts = visited(model);
  auto* values = model.values[i].as<float>();
  const std::vector<float> start(values, values + direction.size());
  double difference = 0;
  for (const double sign : {1.0, -1.0}) {
    for (std::size_t k = 0; k < direction.size(); ++k) {
      values[k] = start[k] + static_cast<float>(sign * step) * direction[k];
    }
    difference += sign * whole_loss(model, batch);
    if (visited(model) != experts) difference = NAN;
  }
  std::copy(start.begin(), start.end(), values);
  return difference / (2 * step);
}

/// Two slopes along drawn directions of the same length: the loss's as it moves, and the
/// gradient's.
struct Slopes {
  double moved = NAN;
  double expected = 0;
  double length = 0;
};

Slopes slopes_along(WholeModel& model, const TestBatch& batch, std::size_t i,
                    const std::vector<float>& grad, std::uint64_t seed) {
  std::vector<float> direction(grad.size());
  fill_normal(seed, 0, static_cast<std::int64_t>(grad.size()), 1, direction.data());
  Slopes slopes;
  double squares = 0;
  for (std::size_t k = 0; k < grad.size(); ++k) {
    slopes.expected += static_cast<double>(grad[k]) * static_cast<double>(direction[k]);
    squares += static_cast<double>(direction[k]) * static_cast<double>(direction[k]);
  }
  slopes.length = std::sqrt(squares);
  const double step = 2e-2 / slopes.length;
  // Two step lengths cancel the error of second order (Richardson).
  slopes.moved = (4 * central_difference(model, batch, i, direction, step / 2) -
                  central_difference(model, batch, i, direction, step)) /
                 3;
  return slopes;
}

}  // namespace

TEST_CASE("arenas fill exactly as planned: saved, scratch and deltas") {
  for (const auto& [name, config] : test_configs()) {
    for (const std::int64_t batch : {1, 3}) {
      for (const std::int64_t seq_len : {1, 7, 12}) {
        INFO(name << ", batch " << batch << ", seq_len " << seq_len);
        WholeModel model(config);
        model.start(1);
        const TestBatch data = some_batch(config, batch, seq_len);
        model.forward_backward(data, 1, Write::set);
        const std::int64_t training_peak = model.scratch.peak_bytes();
        CHECK(model.saved_arena.peak_bytes() ==
              saved_bytes(config, all_layers(config), batch, seq_len));
        model.loss(data);
        CHECK(std::max(training_peak, model.scratch.peak_bytes()) ==
              scratch_bytes(config, all_layers(config), batch, seq_len));
        CHECK(model.scratch.mark() == 0);
        model.split_backward = true;
        model.forward_backward(data, 1, Write::set);
        CHECK(model.deltas.peak_bytes() == delta_bytes(config, batch, seq_len));
      }
    }
  }
}

TEST_CASE("the memory of a range of layers is that of its parts") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    std::int64_t sum = 0, largest = 0;
    for (std::int64_t layer = embedding_layer; layer <= head_layer(config); ++layer) {
      sum += saved_bytes(config, {layer, layer + 1}, 2, 8);
      largest = std::max(largest, scratch_bytes(config, {layer, layer + 1}, 2, 8));
    }
    CHECK(saved_bytes(config, all_layers(config), 2, 8) == sum);
    CHECK(scratch_bytes(config, all_layers(config), 2, 8) == largest);
    CHECK(saved_bytes(config, {1, 1}, 2, 8) == 0);
    CHECK(scratch_bytes(config, {embedding_layer, 0}, 2, 8) == 0);
  }
}

TEST_CASE("the scratch of a block alone and of a head alone is exactly planned") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    model.start(1);
    const std::int64_t head = head_layer(config);
    const TestBatch data = some_batch(config, 2, 6);
    Arena saved(saved_bytes(config, {0, 1}, 2, 6));
    Arena scratch(scratch_bytes(config, {0, 1}, 2, 6));
    Arena head_scratch(scratch_bytes(config, {head, head + 1}, 2, 6));
    const Pass pass{.queue = model.queue,
                    .scratch = scratch,
                    .batch = 2,
                    .seq_len = 6,
                    .labels = View(data.labels.data(), {12})};
    const Pass head_pass{.queue = model.queue, .scratch = head_scratch, .batch = 2, .seq_len = 6};
    std::vector<float> x(static_cast<std::size_t>(12 * config.hidden_size), 0.5f);
    std::vector<float> dx = x;
    const MutView x_view(x.data(), {12, config.hidden_size});
    const MutView dx_view(dx.data(), {12, config.hidden_size});
    const BlockSaved kept = model.decoder.block_forward(pass, 0, model.layer(0), x_view, saved);
    model.decoder.block_backward(pass, 0, model.layer(0), kept, model.grads(0), Write::set,
                                 dx_view);
    model.queue.finish();
    model.decoder.block(pass, 0, model.layer(0), x_view);
    LossSum loss;
    model.decoder.head_forward_backward(head_pass, model.layer(head), x_view,
                                        View(data.labels.data(), {12}), 1, model.grads(head),
                                        Write::set, dx_view, loss);
    model.queue.finish();
    CHECK(saved.peak_bytes() == saved.n_bytes());
    CHECK(scratch.peak_bytes() == scratch.n_bytes());
    CHECK(head_scratch.peak_bytes() == head_scratch.n_bytes());
  }
}

TEST_CASE("a zero head gives ln V for every token") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    model.start(1);
    const std::size_t head =
        config.tie_embeddings ? 0 : model.find(Role::head_weight, head_layer(config));
    std::memset(model.values[head].data(), 0,
                static_cast<std::size_t>(model.values[head].n_bytes()));
    const LossSum loss = model.forward_backward(some_batch(config, 2, 10), 1, Write::set);
    CHECK(loss.n_valid == 16);
    // One rounding of exp, log and division each in f32.
    CHECK(loss.sum / 16 == Approx(std::log(static_cast<double>(config.vocab_size))).epsilon(2e-7));
  }
}

TEST_CASE("a later token changes no earlier logit") {
  for (const auto& [name, config] : test_configs()) {
    WholeModel model(config);
    start_wide(model);
    TestBatch batch = some_batch(config, 2, 10);
    batch.training = false;
    const std::vector<float> before = model.logits(batch);
    const std::int64_t changed = 6;  // in the first sample
    batch.tokens[changed] = (batch.tokens[changed] + 1) % 29;
    const std::vector<float> after = model.logits(batch);
    for (std::int64_t i = 0; i < 20; ++i) {
      INFO(name << ", token " << i);
      const bool is_equal = std::equal(before.begin() + i * 29, before.begin() + (i + 1) * 29,
                                       after.begin() + i * 29);
      CHECK(is_equal == (i < changed || i >= 10));
    }
  }
}

TEST_CASE("the path that keeps nothing gives the training path's loss bits") {
  for (auto [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    start_wide(model);
    TestBatch batch = some_batch(config, 3, 9);
    batch.training = false;
    const LossSum kept = model.forward_backward(batch, 1, Write::set);
    const LossSum alone = model.loss(batch);
    CHECK(kept.sum == alone.sum);
    CHECK(kept.n_valid == alone.n_valid);
  }
}

TEST_CASE("the logits of one row are those of all rows") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    start_wide(model);
    TestBatch batch = some_batch(config, 1, 8);
    batch.training = false;
    const std::vector<float> all = model.logits(batch);
    const Storage storage(8 * config.hidden_size * 4);
    const MutView x = storage.view(Dtype::f32, {8, config.hidden_size});
    const Pass pass{.queue = model.queue,
                    .scratch = model.scratch,
                    .batch = 1,
                    .seq_len = 8,
                    .training = false};
    model.decoder.embed(pass, model.layer(embedding_layer), View(batch.tokens.data(), {8}), x);
    for (std::int64_t i = 0; i < 2; ++i) model.decoder.block(pass, i, model.layer(i), x);
    std::vector<float> last(29);
    model.decoder.head_logits(pass, model.layer(2),
                              part(View(x), 7 * config.hidden_size, {1, config.hidden_size}),
                              MutView(last.data(), {1, 29}));
    model.queue.finish();
    // A product of one row may be summed in another order.
    for (std::size_t v = 0; v < 29; ++v) CHECK(last[v] == Approx(all[7 * 29 + v]).margin(1e-4));
  }
}

TEST_CASE("gradients agree with central differences of the loss along random directions") {
  for (const auto& [name, config] : test_configs()) {
    if (config.activation == Activation::relu)
      continue;  // differences across its kinks say nothing
    WholeModel model(config);
    start_wide(model);
    const TestBatch batch = some_batch(config, 2, 8);
    model.forward_backward(batch, 1, Write::set);
    const auto grads = gradients(model);
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      INFO(name << " " << model.specs[i].name);
      Slopes slopes;
      for (std::uint64_t seed = 1; seed <= 9 && std::isnan(slopes.moved); ++seed) {
        slopes = slopes_along(model, batch, i, grads[i], seed);
      }
      // An f32 loss of about 40 is good to some 1e-6, over a step of 1e-2 along the unit direction.
      CHECK(slopes.moved == Approx(slopes.expected).epsilon(1e-3).margin(5e-4 * slopes.length));
    }
  }
}

TEST_CASE("a tied parameter's gradient is the sum of its two uses, as an untied copy has them") {
  for (const auto& [name, config] : test_configs()) {
    if (!config.tie_embeddings) continue;
    INFO(name);
    ModelConfig untied_config = config;
    untied_config.tie_embeddings = false;
    WholeModel tied(config);
    WholeModel untied(untied_config);
    start_wide(tied);
    for (const ParameterSpec& spec : untied.specs) {
      const bool is_head = spec.role == Role::head_weight;
      const std::size_t from = is_head ? 0 : tied.find(spec.role, spec.layer);
      std::memcpy(untied.values[untied.find(spec.role, spec.layer)].data(),
                  tied.values[from].data(), static_cast<std::size_t>(spec.n_elements()) * 4);
    }
    const TestBatch batch = some_batch(config, 2, 8);
    const LossSum a = tied.forward_backward(batch, 1, Write::set);
    const LossSum b = untied.forward_backward(batch, 1, Write::set);
    CHECK(a.sum == b.sum);
    const std::vector<float> sum = tied.gradient(0);
    const std::vector<float> table = untied.gradient(0);
    const std::vector<float> head =
        untied.gradient(untied.find(Role::head_weight, head_layer(config)));
    bool equal = true;
    for (std::size_t i = 0; i < sum.size(); ++i) equal = equal && sum[i] == table[i] + head[i];
    CHECK(equal);
  }
}

TEST_CASE("a batch and its parts drop out the same elements") {
  for (const auto& [name, config] : test_configs()) {
    if (config.dropout == 0) continue;
    INFO(name);
    WholeModel model(config);
    start_wide(model);
    const TestBatch whole = some_batch(config, 4, 8);
    const LossSum loss = model.forward_backward(whole, 1, Write::set);
    const auto grads = gradients(model);
    LossSum parts;
    for (const Range range : {Range{0, 1}, Range{1, 4}}) {
      const LossSum some = model.forward_backward(samples(whole, range.begin, range.end), 1,
                                                  range.begin == 0 ? Write::set : Write::add);
      parts.sum += some.sum;
      parts.n_valid += some.n_valid;
    }
    // The products' sums may be cut otherwise for another number of rows.
    CHECK(parts.n_valid == loss.n_valid);
    CHECK(parts.sum == Approx(loss.sum).epsilon(1e-6));
    CHECK(relative_distance(gradients(model), grads) < 1e-5);

    TestBatch elsewhere = whole;
    elsewhere.first_sample = 1;
    CHECK(model.forward_backward(elsewhere, 1, Write::set).sum != Approx(loss.sum).epsilon(1e-4));
    elsewhere = whole;
    elsewhere.step = 1;
    CHECK(model.forward_backward(elsewhere, 1, Write::set).sum != Approx(loss.sum).epsilon(1e-4));
  }
}

TEST_CASE("the backward in two halves has the bits of the whole one") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    start_wide(model);
    const TestBatch batch = some_batch(config, 2, 8);
    model.forward_backward(batch, 0.25f, Write::set);
    const auto whole = gradients(model);
    model.split_backward = true;
    model.forward_backward(batch, 0.25f, Write::set);
    CHECK((gradients(model) == whole));
  }
}

TEST_CASE("gradients are added where asked, set otherwise, and scale by powers of two exactly") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    WholeModel model(config);
    start_wide(model);
    const TestBatch batch = some_batch(config, 2, 8);
    model.forward_backward(batch, 1, Write::set);
    const auto once = gradients(model);
    model.forward_backward(batch, 1, Write::add);
    auto twice = once;
    for (auto& tensor : twice) {
      for (float& x : tensor) x *= 2;
    }
    CHECK(relative_distance(gradients(model), twice) < 1e-6);
    model.forward_backward(batch, 0x1p-10f, Write::set);
    auto scaled = once;
    for (auto& tensor : scaled) {
      for (float& x : tensor) x *= 0x1p-10f;
    }
    CHECK((gradients(model) == scaled));
  }
}

TEST_CASE("no valid label gives no loss and no gradient") {
  const ModelConfig config = tiny_llama();
  WholeModel model(config);
  start_wide(model);
  TestBatch batch = some_batch(config, 2, 8);
  std::fill(batch.labels.begin(), batch.labels.end(), ignored_label);
  const LossSum loss = model.forward_backward(batch, 1, Write::set);
  CHECK(loss.sum == 0);
  CHECK(loss.n_valid == 0);
  for (const auto& tensor : gradients(model)) {
    CHECK(std::all_of(tensor.begin(), tensor.end(), [](float x) { return x == 0; }));
  }
}

TEST_CASE("a head cut into chunks of rows has the gradients of the uncut one") {
  ModelConfig config = tiny_gpt2();
  config.hidden_size = 8;
  config.n_layers = 1;
  config.vocab_size = 1 << 19;  // 64 rows of logits at a time
  config.tie_embeddings = false;
  REQUIRE(head_chunk_rows(config) == 64);
  WholeModel model(config);
  model.start(2);
  const TestBatch batch = some_batch(config, 9, 8);
  const LossSum cut = model.forward_backward(batch, 1, Write::set);
  const auto grads = gradients(model);
  LossSum parts;
  for (const Range range : {Range{0, 5}, Range{5, 9}}) {
    const LossSum some = model.forward_backward(samples(batch, range.begin, range.end), 1,
                                                range.begin == 0 ? Write::set : Write::add);
    parts.sum += some.sum;
  }
  CHECK(cut.sum == Approx(parts.sum).epsilon(1e-7));
  CHECK(relative_distance(grads, gradients(model)) < 1e-5);
  CHECK(model.loss(batch).sum == cut.sum);
}

TEST_CASE("tokens and labels outside the vocabulary are refused as data") {
  const ModelConfig config = tiny_gpt2();
  TestBatch batch = some_batch(config, 1, 4);
  batch.tokens[2] = 29;
  CHECK_THROWS_AS(WholeModel(config).loss(batch), DataError);
  batch = some_batch(config, 1, 4);
  batch.labels[1] = 29;
  CHECK_THROWS_AS(WholeModel(config).loss(batch), DataError);
  batch.labels[1] = -1;
  CHECK_THROWS_AS(WholeModel(config).forward_backward(batch, 1, Write::set), DataError);
}

TEST_CASE("a sequence longer than the position table is a broken contract") {
  const ModelConfig config = tiny_gpt2();
  CHECK_THROWS_AS(WholeModel(config).loss(some_batch(config, 1, 13)), ContractBroken);
}

}  // namespace llm
