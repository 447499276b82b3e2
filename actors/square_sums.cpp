#include "actors/square_sums.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/comm/collective.h"
#include "tensor/ops/adamw.h"

namespace llm {
namespace {

std::int64_t n_chunks(std::int64_t n_elements) {
  return (n_elements + norm_chunk_elements - 1) / norm_chunk_elements;
}

/// Of the buckets that the group shares, or of those that are the rank's own.
std::int64_t n_chunks(const Shard& shard, const FlatLayout& layout, bool of_own) {
  std::int64_t n = 0;
  for (std::size_t b = 0; b < shard.pieces.size(); ++b) {
    if (layout.buckets[b].is_own != of_own) continue;
    for (const OwnedPiece& piece : shard.pieces[b]) n += n_chunks(piece.elements.size());
  }
  return n;
}

MutView doubles(const Storage& storage) {
  return storage.view(Dtype::f64, {storage.n_bytes() / 8});
}

}  // namespace

std::int64_t square_chunk_bytes(const ModelConfig& config, const LayerRanges& ranges) {
  const std::vector<ParameterSpec> specs = parameters(config);
  std::int64_t total = 0;
  for (const std::size_t i : owned_parameters(config, ranges)) {
    total += n_chunks(specs[i].n_elements());
  }
  return total * 8;
}

std::int64_t square_sum_bytes(const ModelConfig& config, const LayerRanges& ranges) {
  const std::vector<ParameterSpec> specs = parameters(config);
  auto total = static_cast<std::int64_t>(specs.size());
  total += (config.tp.size > 1 ? config.tp.size : 0) * static_cast<std::int64_t>(specs.size());
  total += (config.ep.size > 1 ? config.ep.size : 0) * static_cast<std::int64_t>(specs.size());
  return total * 8 + square_chunk_bytes(config, ranges);
}

SquareSums::SquareSums(Group& pipeline, Group& owners, Group& tensor, Plan plan,
                       const ModelState& state)
    : pipeline_(pipeline), owners_(owners), tensor_(tensor), plan_(std::move(plan)), state_(state) {
  CHECK_CONTRACT(
      plan_.parameters_by_rank.size() == pipeline_.ranks.size() &&
          plan_.parameters_by_rank[static_cast<std::size_t>(pipeline_.index)] == state_.canonical(),
      "the plan knows which rank has which parameter");
  std::int64_t total = 0;
  for (const ParameterSpec& spec : state_.specs()) {
    chunk_begin_.push_back(total);
    total += n_chunks(spec.n_elements());
  }
  const auto n_members = static_cast<int>(plan_.piece_by_member.size());
  const int own = is_sharded() ? owners_.index : 0;
  std::vector<std::int64_t> chunk_cuts{0};
  for (const int piece : plan_.piece_by_member) {
    shards_.push_back(shard_of(state_.layout(), n_members, piece, norm_chunk_elements));
    chunk_cuts.push_back(chunk_cuts.back() + n_chunks(shards_.back(), state_.layout(), false));
  }
  const Shard& own_shard = shards_[static_cast<std::size_t>(own)];
  CHECK_CONTRACT(chunk_cuts.back() + n_chunks(own_shard, state_.layout(), true) == total,
                 "every chunk has one owner");
  std::int64_t shared_slot = chunk_cuts[static_cast<std::size_t>(own)];
  std::int64_t own_slot = chunk_cuts.back();
  for (std::size_t b = 0; b < own_shard.pieces.size(); ++b) {
    std::int64_t& slot = state_.layout().buckets[b].is_own ? own_slot : shared_slot;
    std::vector<std::int64_t>& of_bucket = slots_.emplace_back();
    for (const OwnedPiece& piece : own_shard.pieces[b]) {
      of_bucket.push_back(slot);
      slot += n_chunks(piece.elements.size());
    }
  }
  chunk_sums_ = Storage(total * 8);
  if (state_.device() == Device::cuda) device_sums_ = Storage(total * 8, Device::cuda);
  if (is_sharded()) {
    chunk_gather_ = all_gather_plan(CollectiveForm::direct, {own, n_members, chunk_cuts});
  }
  std::vector<std::int64_t> cuts{0};
  for (const auto& owned : plan_.parameters_by_rank) {
    cuts.push_back(cuts.back() + static_cast<std::int64_t>(owned.size()));
  }
  parameter_sums_ = Storage(cuts.back() * 8);
  if (state_.config().ep.size > 1) expert_sums_ = Storage(owners_.size() * cuts.back() * 8);
  if (tensor_.size() > 1) tensor_sums_ = Storage(tensor_.size() * cuts.back() * 8);
  parameter_gather_ =
      all_gather_plan(CollectiveForm::direct, {pipeline_.index, pipeline_.size(), cuts});
}

void SquareSums::enqueue(Queue& queue, std::size_t bucket) {
  const std::vector<OwnedPiece>& pieces = state_.shard().pieces[bucket];
  const bool is_on_device = state_.device() != Device::cpu;
  const MutView sums = doubles(is_on_device ? device_sums_ : chunk_sums_);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Range elements = pieces[i].elements;
    const std::int64_t n_counted = state_.specs()[state_.spec_of(pieces[i].tensor)].n_counted;
    const std::int64_t n = std::min(elements.size(), n_counted - elements.begin);
    if (n <= 0) continue;  // another rank counts them; their sums stay 0
    sum_of_squares(queue, part(state_.gradient(pieces[i]), 0, {n}),
                   part(sums, slots_[bucket][i], {n_chunks(n)}));
  }
  if (!is_on_device || pieces.empty()) return;
  // The slots of a bucket's pieces follow each other.
  const std::int64_t first = slots_[bucket].front();
  const std::int64_t end = slots_[bucket].back() + n_chunks(pieces.back().elements.size());
  const MutView here = part(doubles(chunk_sums_), first, {end - first});
  queue.read_back("squares_read", part(sums, first, {end - first}), [here](View read) {
    std::copy_n(read.as<double>(), read.n_elements(), here.as<double>());
  });
}

Task<double> SquareSums::total(std::int64_t step) {
  co_await gather_chunks(step);
  co_await gather_parameters(step);
  std::vector<double> by_parameter(static_cast<std::size_t>(parameter_sums_.n_bytes() / 8));
  const double* sum = doubles(parameter_sums_).as<double>();
  for (const std::vector<std::size_t>& owned : plan_.parameters_by_rank) {
    for (const std::size_t i : owned) by_parameter[i] = *sum++;
  }
  if (expert_sums_.n_bytes() > 0) co_await sum_over_experts(by_parameter, step);
  const double total = co_await sum_over_tensor_group(by_parameter, step);
  co_return total;
}

Task<> SquareSums::sum_over_experts(std::vector<double>& by_parameter, std::int64_t step) {
  const auto n = static_cast<std::int64_t>(by_parameter.size());
  std::vector<std::int64_t> cuts;
  for (std::int64_t k = 0; k <= owners_.size(); ++k) cuts.push_back(k * n);
  const MutView all = doubles(expert_sums_);
  std::copy(by_parameter.begin(), by_parameter.end(), all.as<double>() + owners_.index * n);
  const CollectiveShape shape{owners_.index, owners_.size(), cuts};
  const std::vector<GatherRound> rounds = all_gather_plan(CollectiveForm::direct, shape);
  const CollectiveId id(plan_.experts_tag, step, 0);
  co_await all_gather(owners_, rounds, id, all);
  const std::vector<ParameterSpec> specs = parameters(state_.config());
  for (std::int64_t i = 0; i < n; ++i) {
    const auto p = static_cast<std::size_t>(i);
    if (!is_of_experts(state_.config(), specs[p].role)) continue;
    by_parameter[p] = 0;
    for (std::int64_t rank = 0; rank < owners_.size(); ++rank) {
      by_parameter[p] += all.as<double>()[rank * n + i];
    }
  }
}

Task<double> SquareSums::sum_over_tensor_group(const std::vector<double>& by_parameter,
                                               std::int64_t step) {
  const auto n = static_cast<std::int64_t>(by_parameter.size());
  if (tensor_.size() > 1) {
    std::vector<std::int64_t> cuts;
    for (std::int64_t k = 0; k <= tensor_.size(); ++k) cuts.push_back(k * n);
    const MutView all = doubles(tensor_sums_);
    std::copy(by_parameter.begin(), by_parameter.end(), all.as<double>() + tensor_.index * n);
    const CollectiveShape shape{tensor_.index, tensor_.size(), cuts};
    const std::vector<GatherRound> rounds = all_gather_plan(CollectiveForm::direct, shape);
    const CollectiveId id(plan_.tensor_tag, step, 0);
    co_await all_gather(tensor_, rounds, id, all);
  }
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double of_parameter = by_parameter[static_cast<std::size_t>(i)];
    if (tensor_.size() > 1) {
      of_parameter = 0;
      for (std::int64_t rank = 0; rank < tensor_.size(); ++rank) {
        of_parameter += doubles(tensor_sums_).as<double>()[rank * n + i];
      }
    }
    total += of_parameter;
  }
  co_return total;
}

Task<> SquareSums::gather_chunks(std::int64_t step) {
  if (!is_sharded()) co_return;
  const CollectiveId id(plan_.chunks_tag, step, 0);
  co_await all_gather(owners_, chunk_gather_, id, doubles(chunk_sums_));
}

Task<> SquareSums::gather_parameters(std::int64_t step) {
  std::vector<double> chunks(static_cast<std::size_t>(chunk_sums_.n_bytes() / 8));
  const double* sum = doubles(chunk_sums_).as<double>();
  const auto take = [&](const Shard& shard, bool of_own) {
    for (std::size_t b = 0; b < shard.pieces.size(); ++b) {
      if (state_.layout().buckets[b].is_own != of_own) continue;
      for (const OwnedPiece& piece : shard.pieces[b]) {
        const std::int64_t first =
            chunk_begin_[state_.spec_of(piece.tensor)] + piece.elements.begin / norm_chunk_elements;
        const std::int64_t n = n_chunks(piece.elements.size());
        for (std::int64_t i = 0; i < n; ++i) chunks[static_cast<std::size_t>(first + i)] = *sum++;
      }
    }
  };
  for (const Shard& shard : shards_) take(shard, false);
  take(shards_.front(), true);
  const MutView sums = doubles(parameter_sums_);
  std::size_t own = 0;
  for (int rank = 0; rank < pipeline_.index; ++rank) {
    own += plan_.parameters_by_rank[static_cast<std::size_t>(rank)].size();
  }
  for (std::size_t spec = 0; spec < state_.specs().size(); ++spec) {
    const std::int64_t n = n_chunks(state_.specs()[spec].n_elements());
    double of_parameter = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      of_parameter += chunks[static_cast<std::size_t>(chunk_begin_[spec] + i)];
    }
    sums.as<double>()[own++] = of_parameter;
  }
  const CollectiveId id(plan_.parameters_tag, step, 0);
  co_await all_gather(pipeline_, parameter_gather_, id, sums);
}

}  // namespace llm
