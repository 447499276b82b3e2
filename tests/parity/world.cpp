#include "tests/parity/world.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "src/base/philox.h"
#include "src/comm/nccl/nccl_sums.h"
#include "src/comm/nccl/nccl_transport.h"
#include "src/comm/staged_transport.h"
#include "src/model/tensor_slice.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elementwise.h"
#include "tests/support/host_copy.h"

namespace llm {
namespace {

/// A value that no weight or gradient has.
constexpr float not_owned = 1234567.0f;

Loop::Options loop_options() {
  Loop::Options options;
  options.stall_timeout_seconds = 20;
  return options;
}

/// What the rank owns of each of its parameters; what others own is left out.
Weights owned_of(const ModelState& state, const std::function<View(const OwnedPiece&)>& view_of) {
  Weights tensors;
  for (const ParameterSpec& spec : state.specs()) {
    tensors.emplace_back(static_cast<std::size_t>(spec.n_elements()), not_owned);
  }
  for (const auto& pieces : state.shard().pieces) {
    for (const OwnedPiece& piece : pieces) {
      const HostCopy values(view_of(piece));
      std::copy_n(values.view().as<float>(), piece.elements.size(),
                  tensors[state.spec_of(piece.tensor)].begin() + piece.elements.begin);
    }
  }
  return tensors;
}

bool same_bytes(const View& a, const View& other) {
  const HostCopy b(other);
  return a.n_bytes() == other.n_bytes() &&
         std::memcmp(a.data(), b.view().data(), static_cast<std::size_t>(a.n_bytes())) == 0;
}

/// By element of the whole tensor: which of the rank's is there, or -1.
std::vector<std::int64_t> element_of(const ParameterSpec& spec, std::size_t n_whole) {
  std::vector<float> numbers(static_cast<std::size_t>(spec.n_elements()));
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  std::vector<float> placed(n_whole, 0.0f);
  scatter(spec, {0, spec.n_elements()}, numbers.data(), placed.data());
  std::vector<std::int64_t> elements;
  for (const float number : placed) elements.push_back(static_cast<std::int64_t>(number) - 1);
  return elements;
}

}  // namespace

void RandomSamples::fetch(std::int64_t position, SampleOut out) {
  const std::uint64_t key = mix_key(seed_, static_cast<std::uint64_t>(position));
  for (std::int64_t i = 0; i < seq_len_; ++i) {
    const PhiloxBlock block = philox_at(key, static_cast<std::uint64_t>(i));
    if (out.tokens != nullptr) out.tokens[i] = static_cast<std::int32_t>(block[0] % vocab_size_);
    if (out.labels == nullptr) continue;
    const bool is_ignored = block[2] % 100 < ignored_percent_;
    out.labels[i] = is_ignored ? ignored_label : static_cast<std::int32_t>(block[1] % vocab_size_);
  }
}

void ListedSamples::fetch(std::int64_t position, SampleOut out) {
  fetched.push_back(position);
  const ListedSample& sample = samples_[static_cast<std::size_t>(position) % samples_.size()];
  if (out.tokens != nullptr) std::copy(sample.tokens.begin(), sample.tokens.end(), out.tokens);
  if (out.labels != nullptr) std::copy(sample.labels.begin(), sample.labels.end(), out.labels);
}

Weights weights_of(const ModelState& state) {
  return owned_of(state, [&](const OwnedPiece& piece) { return state.master(piece); });
}

Weights gradients_of(const ModelState& state) {
  return owned_of(state, [&](const OwnedPiece& piece) { return state.gradient(piece); });
}

void set_weights(ModelState& state, std::size_t spec, const std::vector<float>& values) {
  CHECK_CONTRACT(static_cast<std::int64_t>(values.size()) == state.specs()[spec].n_elements(),
                 "a parameter is set as a whole");
  for (const auto& pieces : state.shard().pieces) {
    for (const OwnedPiece& piece : pieces) {
      if (state.spec_of(piece.tensor) != spec) continue;
      const View part_of_values(values.data() + piece.elements.begin, {piece.elements.size()});
      HostCopy(part_of_values).write_to(state.master(piece));
    }
  }
}

std::size_t spec_with(const ModelState& state, Role role) {
  const auto& specs = state.specs();
  const auto found =
      std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return spec.role == role; });
  CHECK_CONTRACT(found != specs.end(), "the model has a parameter with this role");
  return static_cast<std::size_t>(found - specs.begin());
}

std::string difference(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) return "not the same parameters";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return "parameter " + std::to_string(i) + ": sizes";
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      if (std::memcmp(&a[i][k], &b[i][k], sizeof(float)) == 0) continue;
      return "parameter " + std::to_string(i) + " element " + std::to_string(k) + ": " +
             std::to_string(a[i][k]) + " and " + std::to_string(b[i][k]) + ", apart by " +
             std::to_string(1e9 * (double{a[i][k]} - double{b[i][k]})) + "e-9";
    }
  }
  return "";
}

double relative_distance(const Weights& a, const Weights& b) {
  double apart = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      const double d = double{a[i][k]} - double{b[i][k]};
      apart += d * d;
      norm += double{b[i][k]} * double{b[i][k]};
    }
  }
  return std::sqrt(apart / norm);
}

World::World(Settings settings, Options options)
    : options_(std::move(options)),
      loop_(loop_options()),
      grid_(settings.grid),
      is_sharded_(settings.zero_stage > 0),
      spreads_experts_(settings.spreads_experts),
      network_(loop_, grid_.n_ranks(), options_.delivery_seed) {
  if (!options_.resume.empty()) {
    checkpoint_ = std::make_shared<const CheckpointReader>(options_.resume);
  }
  for (int rank = 0; rank < grid_.n_ranks(); ++rank) {
    TrainerInputs own = inputs(rank);
    if (settings.device != Device::cpu && options_.nccl != nullptr) {
      between_devices_.push_back(
          std::make_unique<NcclTransport>(network_.rank(rank), *options_.nccl));
    } else if (settings.device != Device::cpu) {
      between_devices_.push_back(std::make_unique<StagedTransport>(network_.rank(rank)));
    }
    if (checkpoint_) {
      checkpoint_->check_model(settings.model);
      resume_from(checkpoint_, settings, own);
      sources_[0]->restore(checkpoint_->manifest().run.data);
    }
    trainers_.push_back(
        std::make_unique<Trainer>(loop_, transport(rank), settings, std::move(own)));
    options_.prepare(state(rank));
  }
}

TrainerInputs World::inputs(int rank) {
  TrainerInputs inputs;
  inputs.train = sources_.emplace_back(options_.train(rank)).get();
  if (options_.validation) {
    inputs.validation = sources_.emplace_back(options_.validation(rank)).get();
  }
  inputs.save_to = options_.save_to;
  if (options_.nccl != nullptr) {
    inputs.make_library_sums = [this](Group& group) {
      return std::make_unique<NcclSums>(group, *options_.nccl);
    };
  }
  inputs.stop_requested = [this, rank] { return options_.stop_requested(rank); };
  if (rank != 0) return inputs;
  inputs.step_done = Port<StepMetrics>([this](std::int64_t step, StepMetrics metrics) {
    CHECK_CONTRACT(step == metrics.step, "metrics are keyed by their step");
    outcome_.losses.push_back(metrics.loss);
    outcome_.router_losses.push_back(metrics.router);
    outcome_.reports.push_back(metrics.report);
    options_.after_step(step);
  });
  inputs.validation_done = Port<ValidationMetrics>(
      [this](std::int64_t, ValidationMetrics metrics) { outcome_.validations.push_back(metrics); });
  return inputs;
}

Outcome World::run() {
  for (const auto& trainer : trainers_) trainer->start();
  loop_.run();
  outcome_.weights = whole(0, weights_of);
  outcome_.gradients = whole(0, gradients_of);
  for (int dp = 1; dp < grid_.dp && !is_sharded_ && !spreads_experts_; ++dp) {
    const std::string apart = difference(whole(dp, weights_of), outcome_.weights);
    CHECK_CONTRACT(apart.empty(), "every data-parallel rank has the same weights: " + apart);
  }
  for (const auto& trainer : trainers_) {
    check_copies(trainer->state());
    outcome_.n_steps_done.push_back(trainer->n_steps_done());
    outcome_.stopped.push_back(trainer->stopped());
    outcome_.graphs.push_back(trainer->compute().graph_counts());
  }
  return outcome_;
}

Weights World::whole_part(TensorPart part) {
  return whole(0, [part](const ModelState& state) {
    const PieceSource pieces = pieces_of(state);
    return owned_of(state,
                    [&pieces, part](const OwnedPiece& piece) { return pieces(part, piece); });
  });
}

Weights World::whole(int dp, const std::function<Weights(const ModelState&)>& part_of) {
  Weights all;
  for (const ParameterSpec& spec : parameters(whole_model(state(0).config()))) {
    all.emplace_back(static_cast<std::size_t>(spec.n_elements()), not_owned);
  }
  for (const int stage : pipeline_group(grid_, rank_at(grid_, {dp, 0, 0}))) {
    for (const int first : tensor_group(grid_, stage)) {
      const std::vector<int> owners = is_sharded_ || spreads_experts_
                                          ? data_parallel_group(grid_, first)
                                          : std::vector<int>{first};
      for (const int rank : owners) add_part(state(rank), part_of(state(rank)), all);
    }
  }
  for (const std::vector<float>& parameter : all) {
    CHECK_CONTRACT(std::count(parameter.begin(), parameter.end(), not_owned) == 0,
                   "every element has an owner in the pipeline");
  }
  return all;
}

void World::add_part(const ModelState& state, const Weights& own, Weights& all) {
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<float>& into = all[state.canonical()[i]];
    const std::vector<std::int64_t> elements = element_of(state.specs()[i], into.size());
    for (std::size_t k = 0; k < into.size(); ++k) {
      if (elements[k] < 0) continue;
      const float value = own[i][static_cast<std::size_t>(elements[k])];
      if (value == not_owned) continue;
      CHECK_CONTRACT(into[k] == not_owned || std::memcmp(&into[k], &value, sizeof(float)) == 0,
                     "what several ranks have has the same bits: " + state.specs()[i].name);
      into[k] = value;
    }
  }
}

void World::check_copies(const ModelState& state) const {
  const std::vector<ParameterUse> uses = parameter_uses(state.config());
  const Range layers = all_layers(state.config());
  Queue queue;
  const bool is_whole = grid_.tp == 1 && !spreads_experts_;
  for (std::int64_t layer = layers.begin; layer < layers.end && is_whole; ++layer) {
    const Values values = state.values(layer);
    for (const ParameterUse& use : uses) {
      const View value = use.layer == layer ? values[use.role] : View();
      if (value.empty()) continue;
      const Storage rounded(value.n_elements() * 4);
      const MutView expected = rounded.view(value.dtype(), {value.n_elements()});
      convert(queue, View(outcome_.weights[use.parameter].data(), {value.n_elements()}), expected);
      queue.finish();
      CHECK_CONTRACT(same_bytes(expected, value), "what ops read are the rounded masters");
    }
  }
  for (const auto& pieces : state.shard().pieces) {
    for (const OwnedPiece& piece : pieces) {
      const MutView own = state.rounded(piece);
      if (own.empty()) continue;
      const Storage rounded(own.n_elements() * 4);
      const MutView expected = rounded.view(own.dtype(), {own.n_elements()});
      const HostCopy master(state.master(piece));
      convert(queue, master.view(), expected);
      queue.finish();
      CHECK_CONTRACT(same_bytes(expected, own), "what is gathered are the rounded masters");
    }
  }
}

Outcome run_world(const Settings& settings, std::uint64_t delivery_seed,
                  std::uint32_t ignored_percent) {
  World::Options options;
  options.delivery_seed = delivery_seed;
  options.train = [&](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len,
                                           ignored_percent);
  };
  return World(settings, std::move(options)).run();
}

ModelConfig parity_gpt2(float dropout) {
  return {.hidden_size = 16,
          .n_layers = 2,
          .n_heads = 4,
          .n_kv_heads = 4,
          .intermediate_size = 32,
          .vocab_size = 31,
          .max_seq_len = 8,
          .dropout = dropout};
}

ModelConfig parity_llama(float dropout) {
  ModelConfig config = parity_gpt2(dropout);
  config.norm = Norm::rms_norm;
  config.positions = Positions::rotary;
  config.activation = Activation::silu;
  config.gated = true;
  config.n_kv_heads = 2;
  config.qkv_bias = config.mlp_bias = false;
  config.tie_embeddings = false;
  return config;
}

ModelConfig parity_mixtral(float dropout) {
  ModelConfig config = parity_llama(dropout);
  config.n_experts = 4;
  config.top_k = 2;
  config.intermediate_size = 24;
  config.router_weights = {.balance = 0.1f, .z = 0.01f};
  return config;
}

Settings parity_settings(const ModelConfig& model, int dp, std::vector<std::int64_t> samples,
                         int n_accumulation_steps, std::int64_t n_steps) {
  Settings settings;
  settings.model = model;
  settings.seq_len = 8;
  settings.grid = {.dp = dp, .pp = 1, .tp = 1};
  settings.partition = {.microbatch_samples = std::move(samples),
                        .n_accumulation_steps = n_accumulation_steps,
                        .dp = dp};
  settings.optimizer.lr = {.peak = 1e-2, .warmup_steps = 2, .n_steps = n_steps};
  settings.optimizer.weight_decay = 0.1;
  settings.optimizer.clip_norm = 0.5;
  settings.bucket_bytes = 8192;
  settings.seed = 5;
  settings.n_steps = n_steps;
  set_pipeline(settings);
  return settings;
}

namespace {
bool is_asked_for(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string(value) == "1";
}
}  // namespace

bool full_counts() {
  return is_asked_for("LLM_TEST_FULL");
}

std::uint64_t n_delivery_seeds(std::uint64_t full, std::uint64_t usual) {
  if (full_counts()) return full;
  return is_asked_for("LLM_TEST_FEW") ? std::min<std::uint64_t>(usual, 2) : usual;
}

GridCells::GridCells(std::string name, int step)
    : name_(std::move(name)), step_(is_asked_for("LLM_TEST_FEW") ? step : 1) {}

GridCells::~GridCells() {
  std::printf("%s: %d of %d layouts\n", name_.c_str(), n_taken_, n_cells_);
}

bool GridCells::takes_next() {
  const bool takes = n_cells_++ % step_ == 0;
  n_taken_ += takes ? 1 : 0;
  return takes;
}

}  // namespace llm
