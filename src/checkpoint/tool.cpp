#include "src/checkpoint/tool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/store.h"
#include "src/checkpoint/tensor_file.h"
#include "src/io/hf_folder.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

using Tensor = CheckpointReader::Tensor;

bool has_suffix(const std::string& name, const std::string& suffix) {
  return name.size() > suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

TensorPart part_of(const std::string& name) {
  if (has_suffix(name, part_name("", TensorPart::exp_avg))) return TensorPart::exp_avg;
  if (has_suffix(name, part_name("", TensorPart::exp_avg_sq))) return TensorPart::exp_avg_sq;
  return TensorPart::weight;
}

/// Of one tensor.
struct Distance {
  double apart = 0;  ///< |a - b|
  double norm = 0;   ///< |b|
  std::int64_t n_different = 0;
  std::int64_t first = -1;  ///< element
  float a = 0;
  float b = 0;
};

Distance distance_of(const CheckpointReader& a, const CheckpointReader& b, const std::string& name,
                     const Tensor& tensor) {
  constexpr std::int64_t n_elements_at_a_time = 1 << 20;
  const std::int64_t n_rows_at_a_time =
      std::clamp<std::int64_t>(n_elements_at_a_time / tensor.n_columns, 1, tensor.n_rows);
  std::vector<float> of_a(static_cast<std::size_t>(n_rows_at_a_time * tensor.n_columns));
  std::vector<float> of_b(of_a.size());
  Distance distance;
  double apart = 0;
  double norm = 0;
  for (std::int64_t row = 0; row < tensor.n_rows; row += n_rows_at_a_time) {
    const Range rows{row, std::min(row + n_rows_at_a_time, tensor.n_rows)};
    a.read_rows(name, rows, of_a.data());
    b.read_rows(name, rows, of_b.data());
    const auto n = static_cast<std::size_t>(rows.size() * tensor.n_columns);
    for (std::size_t i = 0; i < n; ++i) {
      norm += double{of_b[i]} * double{of_b[i]};
      if (std::memcmp(&of_a[i], &of_b[i], sizeof(float)) == 0) continue;
      const double d = double{of_a[i]} - double{of_b[i]};
      apart += d * d;
      if (distance.n_different++ > 0) continue;
      distance.first = row * tensor.n_columns + static_cast<std::int64_t>(i);
      distance.a = of_a[i];
      distance.b = of_b[i];
    }
  }
  distance.apart = std::sqrt(apart);
  distance.norm = std::sqrt(norm);
  return distance;
}

std::string place_of(const Tensor& tensor, std::int64_t element) {
  if (tensor.is_vector) return fmt::format("[{}]", element);
  return fmt::format("[{}, {}]", element / tensor.n_columns, element % tensor.n_columns);
}

bool has_moments(const CheckpointReader& checkpoint) {
  return std::any_of(
      checkpoint.tensors().begin(), checkpoint.tensors().end(),
      [](const auto& tensor) { return part_of(tensor.first) != TensorPart::weight; });
}

struct Compared {
  std::string name;
  Tensor tensor;
  Distance distance;
};

/// The first tensor that one of them alone has, or with another shape; empty where there is none.
std::string first_without_peer(const CheckpointReader& a, const CheckpointReader& b,
                               bool weights_alone) {
  const auto is_left_out = [weights_alone](const std::string& name) {
    return weights_alone && part_of(name) != TensorPart::weight;
  };
  for (const auto& [name, tensor] : a.tensors()) {
    if (is_left_out(name)) continue;
    const auto found = b.tensors().find(name);
    if (found == b.tensors().end()) {
      return fmt::format("different: tensor \"{}\" is in {} alone", name, a.folder().string());
    }
    if (found->second == tensor) continue;
    return fmt::format("different: tensor \"{}\" has the shape ({}) in {} and ({}) in {}", name,
                       fmt::join(tensor.shape(), ", "), a.folder().string(),
                       fmt::join(found->second.shape(), ", "), b.folder().string());
  }
  for (const auto& [name, tensor] : b.tensors()) {
    if (a.tensors().contains(name) || is_left_out(name)) continue;
    return fmt::format("different: tensor \"{}\" is in {} alone", name, b.folder().string());
  }
  return "";
}

std::string text_of(const Compared& one) {
  const Distance& d = one.distance;
  return fmt::format("{}: {} of {} elements, |a-b|/|b| {:.3g}; first {}: {} and {}", one.name,
                     d.n_different, one.tensor.n_rows * one.tensor.n_columns,
                     d.norm > 0 ? d.apart / d.norm : d.apart, place_of(one.tensor, d.first), d.a,
                     d.b);
}

}  // namespace

std::string show_checkpoint(const fs::path& checkpoint, bool tensors) {
  const CheckpointReader reader(checkpoint);
  const Manifest& manifest = reader.manifest();
  const RunState& run = manifest.run;
  std::int64_t n_weights = 0;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (part_of(name) == TensorPart::weight) n_weights += tensor.n_rows * tensor.n_columns;
  }
  std::string text =
      fmt::format("{}: {}\n", checkpoint.string(),
                  fs::exists(checkpoint / manifest_name) ? name_of(manifest.kind) : "weights");
  if (fs::exists(checkpoint / manifest_name)) {
    text += fmt::format(
        "  step {}, {} updates, {} samples in steps of {}\n  saved by {}\n  loss scale {}, "
        "unchanged for {} steps\n",
        run.step, run.n_updates, run.n_samples, run.global_batch, run.layout, run.loss_scale,
        run.n_good_steps);
    if (run.validation_loss)
      text += fmt::format("  validation loss {:.6f}\n", *run.validation_loss);
    text += fmt::format("  data {}\n", run.data);
  }
  text += fmt::format("  {} parameters, {} tensors\n", n_weights, reader.tensors().size());
  for (const FileRecord& file : manifest.files) {
    text += fmt::format("  {:>12} bytes  crc32 {:08x}  {}\n", file.n_bytes, file.crc32, file.name);
  }
  for (const auto& [name, tensor] : reader.tensors()) {
    if (tensors) text += fmt::format("  ({})  {}\n", fmt::join(tensor.shape(), ", "), name);
  }
  return text;
}

void export_checkpoint(const fs::path& checkpoint, const fs::path& to) {
  if (fs::exists(to)) {
    throw FileError(fmt::format("{} is there already; name a folder that is not", to.string()));
  }
  if (fs::exists(checkpoint / manifest_name)) verify_checkpoint(checkpoint);
  const CheckpointReader reader(checkpoint);
  const fs::path draft = to.string() + ".tmp";
  std::error_code error;
  fs::remove_all(draft, error);
  fs::create_directories(draft, error);
  if (error) {
    throw FileError(fmt::format("cannot make {}: {}", draft.string(), error.message()));
  }
  std::vector<FileTensor> tensors;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (part_of(name) == TensorPart::weight) tensors.push_back({name, tensor.shape()});
  }
  TensorFile file(draft / "model.safetensors", tensors);
  for (const FileTensor& one : tensors) {
    const Tensor& tensor = reader.tensors().at(one.name);
    std::vector<float> values(static_cast<std::size_t>(tensor.n_rows * tensor.n_columns));
    reader.read_rows(one.name, {0, tensor.n_rows}, values.data());
    file.append(Box{.tensor = one.name,
                    .is_vector = tensor.is_vector,
                    .rows = {0, tensor.n_rows},
                    .columns = {0, tensor.n_columns},
                    .first = 0,
                    .row_stride = tensor.n_columns,
                    .column_stride = 1},
                values.data());
  }
  file.finish();
  std::vector<std::string> texts = hf_tokenizer_files(checkpoint);
  for (const char* const name : {"config.json", "generation_config.json", "config.yaml"}) {
    if (fs::exists(checkpoint / name)) texts.emplace_back(name);
  }
  for (const std::string& name : texts) write_text(draft / name, read_file(checkpoint / name));
  sync_folder(draft);
  fs::rename(draft, to, error);
  if (error) throw FileError(fmt::format("cannot make {}: {}", to.string(), error.message()));
  sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

Comparison compare_checkpoints(const fs::path& path_a, const fs::path& path_b, double tolerance) {
  const CheckpointReader a(path_a);
  const CheckpointReader b(path_b);
  Comparison comparison;
  const auto different = [&comparison](std::string text) {
    comparison = {Comparison::Verdict::different, std::move(text)};
    return comparison;
  };
  const bool weights_alone = !has_moments(a) || !has_moments(b);
  if (const std::string text = first_without_peer(a, b, weights_alone); !text.empty()) {
    return different(text);
  }
  std::size_t n_tensors = 0;
  std::vector<Compared> apart;
  double largest_norm[std::size(tensor_parts)] = {};
  double sum_apart = 0;
  double sum_norm = 0;
  for (const auto& [name, tensor] : a.tensors()) {
    if (weights_alone && part_of(name) != TensorPart::weight) continue;
    ++n_tensors;
    const Distance distance = distance_of(a, b, name, tensor);
    double& largest = largest_norm[static_cast<std::size_t>(part_of(name))];
    largest = std::max(largest, distance.norm);
    sum_apart += distance.apart * distance.apart;
    sum_norm += distance.norm * distance.norm;
    if (distance.n_different > 0) apart.push_back({name, tensor, distance});
  }
  if (apart.empty()) {
    comparison.text = fmt::format("identical: {} tensors", n_tensors);
    return comparison;
  }
  const Compared* first = nullptr;
  std::size_t n_far = 0;
  for (const Compared& one : apart) {
    const double largest = largest_norm[static_cast<std::size_t>(part_of(one.name))];
    if (one.distance.apart <= tolerance * largest) continue;  // not where it is not a number
    ++n_far;
    if (first == nullptr) first = &one;
  }
  if (first != nullptr) {
    return different(fmt::format("different: {} of {} tensors by more than {:g}, the first {}",
                                 n_far, n_tensors, tolerance, text_of(*first)));
  }
  const Compared& worst = *std::max_element(
      apart.begin(), apart.end(),
      [](const Compared& x, const Compared& y) { return x.distance.apart < y.distance.apart; });
  comparison.verdict = Comparison::Verdict::rounding;
  comparison.text = fmt::format(
      "rounding: {} of {} tensors differ, all within {:g}; |a-b|/|b| {:.3g} over all; the largest "
      "{}",
      apart.size(), n_tensors, tolerance, std::sqrt(sum_apart / sum_norm), text_of(worst));
  return comparison;
}

}  // namespace llm
