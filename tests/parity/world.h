#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/checkpoint/reader.h"
#include "src/comm/loopback/loopback.h"
#include "src/comm/nccl/nccl_calls.h"
#include "src/data/sample_source.h"
#include "src/train/resume.h"
#include "src/train/trainer.h"

namespace llm {

/// Samples drawn by (seed, position); of each hundred labels about `ignored_percent` are ignored.
class RandomSamples : public SampleSource {
 public:
  RandomSamples(std::uint64_t seed, std::int64_t vocab_size, std::int64_t seq_len,
                std::uint32_t ignored_percent = 0)
      : seed_(seed),
        vocab_size_(static_cast<std::uint32_t>(vocab_size)),
        seq_len_(seq_len),
        ignored_percent_(ignored_percent) {}
  std::int64_t seq_len() const override { return seq_len_; }
  std::int64_t n_samples() const override { return 1 << 20; }
  void fetch(std::int64_t position, SampleOut out) override;
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}

 private:
  std::uint64_t seed_;
  std::uint32_t vocab_size_;
  std::int64_t seq_len_;
  std::uint32_t ignored_percent_;
};

/// One sample: T tokens and T labels.
struct ListedSample {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
};

/// Samples as listed, over and over. Notes the positions it was asked for in `fetched`.
class ListedSamples : public SampleSource {
 public:
  explicit ListedSamples(std::vector<ListedSample> samples) : samples_(std::move(samples)) {}
  std::int64_t seq_len() const override {
    return static_cast<std::int64_t>(samples_.front().tokens.size());
  }
  std::int64_t n_samples() const override { return static_cast<std::int64_t>(samples_.size()); }
  void fetch(std::int64_t position, SampleOut out) override;
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}

  std::vector<std::int64_t> fetched;

 private:
  std::vector<ListedSample> samples_;
};

using Weights = std::vector<std::vector<float>>;  ///< by parameter, in canonical order

Weights weights_of(const ModelState& state);
/// The sum over the step's tokens as the reducers left it in gradient buffer 0.
Weights gradients_of(const ModelState& state);
void set_weights(ModelState& state, std::size_t spec, const std::vector<float>& values);
/// Index of the parameter with this role in the first layer that has one.
std::size_t spec_with(const ModelState& state, Role role);
/// Empty where all bits are equal, otherwise the first place that differs.
std::string difference(const Weights& a, const Weights& b);
/// |a - b| / |b|, the norms over all tensors together.
double relative_distance(const Weights& a, const Weights& b);

/// What a run gave; the weights are those of every rank, bit by bit (or running it throws).
struct Outcome {
  Weights weights;
  Weights gradients;  ///< of the last step, see gradients_of
  std::vector<double> losses;
  std::vector<RouterLosses> router_losses;  ///< means, by step
  std::vector<StepReport> reports;
  std::vector<ValidationMetrics> validations;
  std::vector<std::int64_t> n_steps_done;  ///< by rank
  std::vector<bool> stopped;               ///< by rank
  std::vector<Queue::GraphCounts> graphs;  ///< by rank, of the compute queue
};

/// A run of settings.grid's whole trainers in this process, with message deliveries drawn from a
/// seed.
class World {
 public:
  struct Options {
    std::uint64_t delivery_seed = 1;
    std::function<std::unique_ptr<SampleSource>(int rank)> train;
    std::function<std::unique_ptr<SampleSource>(int rank)> validation;
    std::function<bool(int rank)> stop_requested = [](int) { return false; };
    std::function<void(ModelState&)> prepare = [](ModelState&) {};
    /// Called on rank 0 after each step, while the run goes on.
    std::function<void(std::int64_t step)> after_step = [](std::int64_t) {};
    SaveTo save_to = {};
    /// Carries tensors between devices; nullptr: they go through the host.
    const NcclCalls* nccl = nullptr;
    /// The run goes on from this checkpoint where it is set.
    std::filesystem::path resume = {};
  };
  World(Settings settings, Options options);
  Outcome run();
  ModelState& state(int rank) { return trainers_[static_cast<std::size_t>(rank)]->state(); }
  /// What all ranks own of one part of each parameter, in canonical order.
  Weights whole_part(TensorPart part);
  const TransportCounts& counts(int rank) { return transport(rank).counts(); }
  Transport& transport(int rank) {
    return between_devices_.empty() ? network_.rank(rank)
                                    : *between_devices_[static_cast<std::size_t>(rank)];
  }

 private:
  TrainerInputs inputs(int rank);
  std::shared_ptr<const CheckpointReader> checkpoint_;
  /// Of all parameters in canonical order, from the ranks of one pipeline.
  Weights whole(int dp, const std::function<Weights(const ModelState&)>& part_of);
  /// Puts what a rank has into the whole.
  void add_part(const ModelState& state, const Weights& own, Weights& all);
  /// Whether every copy of a weight is that weight, rounded.
  void check_copies(const ModelState& state) const;

  Options options_;
  Outcome outcome_;
  Loop loop_;
  Grid grid_;
  bool is_sharded_;
  bool spreads_experts_;
  LoopbackNetwork network_;
  std::vector<std::unique_ptr<Transport>> between_devices_;  // by rank, where they compute there
  std::vector<std::unique_ptr<SampleSource>> sources_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

/// A run on RandomSamples with these settings.
Outcome run_world(const Settings& settings, std::uint64_t delivery_seed = 1,
                  std::uint32_t ignored_percent = 0);

/// Models of both families that cost about a millisecond a step.
ModelConfig parity_gpt2(float dropout = 0);
ModelConfig parity_llama(float dropout = 0);
/// A Llama with four experts, of which a token visits two.
ModelConfig parity_mixtral(float dropout = 0);
/// A few steps of AdamW with clipping and warm-up.
Settings parity_settings(const ModelConfig& model, int dp, std::vector<std::int64_t> samples,
                         int n_accumulation_steps, std::int64_t n_steps);

/// Whether the full counts are asked for (LLM_TEST_FULL=1).
bool full_counts();
/// How many seeds a test takes: `full` under LLM_TEST_FULL=1, and two under LLM_TEST_FEW=1, where
/// memory errors are looked for and each seed takes the same code.
std::uint64_t n_delivery_seeds(std::uint64_t full, std::uint64_t usual);

/// Which cells of a grid of layouts a test takes: each, and under LLM_TEST_FEW=1 every `step`-th.
/// A step that is prime to the lengths of the inner loops takes each of their values in turn. At
/// its end it prints how many cells of how many were taken.
class GridCells {
 public:
  GridCells(std::string name, int step);
  ~GridCells();
  GridCells(const GridCells&) = delete;
  GridCells& operator=(const GridCells&) = delete;
  /// Whether the test takes the next cell.
  bool takes_next();

 private:
  std::string name_;
  int step_;
  int n_cells_ = 0;
  int n_taken_ = 0;
};

}  // namespace llm
