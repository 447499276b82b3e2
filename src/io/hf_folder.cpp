#include "src/io/hf_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/io/hf_weights.h"
#include "src/io/json_file.h"

namespace llm {
namespace {

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";

/// Of files read and written at a time.
constexpr std::int64_t n_elements_at_a_time = 1 << 20;

bool ends_with(const std::string& text, const char* end) {
  const std::string suffix = end;
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool is_buffer(const std::string& name) {
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
         ends_with(name, ".rotary_emb.inv_freq");
}

/// A file's name in the index: of this folder, nothing else.
bool is_file_name(const std::string& name) {
  return ends_with(name, ".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// Some rows of a stored tensor (n_columns, n_rows), as the rows of the internal (n_rows,
/// n_columns).
void read_transposed(const SafetensorsFile& file, const SafetensorsEntry& entry, Range elements,
                     float* out) {
  const std::int64_t n_columns = entry.shape[0];
  const std::int64_t n_rows = entry.shape[1];
  const std::int64_t n_rows_at_a_time =
      std::clamp<std::int64_t>(n_elements_at_a_time / n_columns, 1, n_rows);
  const std::int64_t end_row = (elements.end + n_columns - 1) / n_columns;
  std::vector<float> stored(static_cast<std::size_t>(n_rows_at_a_time * n_columns));
  std::vector<float> rows(stored.size());
  for (std::int64_t row = elements.begin / n_columns; row < end_row; row += n_rows_at_a_time) {
    const std::int64_t n = std::min(n_rows_at_a_time, end_row - row);
    if (n == n_rows) {
      file.read_f32(entry, {0, n * n_columns}, stored.data());
    } else {
      for (std::int64_t c = 0; c < n_columns; ++c) {
        const std::int64_t begin = c * n_rows + row;
        file.read_f32(entry, {begin, begin + n}, stored.data() + c * n);
      }
    }
    transpose(stored.data(), n_columns, n, rows.data());
    const std::int64_t first = row * n_columns;
    const std::int64_t begin = std::max(first, elements.begin);
    const std::int64_t end = std::min(first + n * n_columns, elements.end);
    std::copy(rows.begin() + (begin - first), rows.begin() + (end - first),
              out + (begin - elements.begin));
  }
}

}  // namespace

HfWeights::HfWeights(std::filesystem::path folder, const ModelConfig& config)
    : folder_(std::move(folder)) {
  open();
  match(config);
}

void HfWeights::open() {
  std::error_code ignored;
  const auto exists = [&](const char* name) {
    return std::filesystem::exists(folder_ / name, ignored);
  };
  if (exists(single_file)) {
    add_file(folder_ / single_file);
  } else if (exists(index_file)) {
    open_sharded(folder_ / index_file);
  } else {
    throw FileError(
        fmt::format("{}: holds neither {} nor {}{}", folder_.string(), single_file, index_file,
                    exists("pytorch_model.bin") || exists("pytorch_model.bin.index.json")
                        ? "; pytorch_model.bin is not read, save it with safe_serialization=True"
                        : "; name a folder that save_pretrained or llm-train wrote"));
  }
}

void HfWeights::add_file(const std::filesystem::path& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const SafetensorsEntry& entry : file.tensors()) {
    const auto [place, is_new] = stored_.emplace(entry.name, Stored{&file, &entry});
    if (!is_new) {
      throw DataError(fmt::format("{}: tensor \"{}\" is in {} too; remove it from one",
                                  path.string(), entry.name, place->second.file->path().string()));
    }
  }
}

void HfWeights::open_sharded(const std::filesystem::path& index) {
  const nlohmann::json json = read_json_object(index);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    throw DataError(index.string() + ": has no object weight_map of tensor names and files");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_file_name(file)) {
      throw DataError(
          fmt::format("{}: weight_map puts tensor {} into {}, which is no name of a .safetensors "
                      "file beside it",
                      index.string(), nlohmann::json(tensor).dump(), file.dump()));
    }
    names.insert(file);
  }
  for (const std::string& name : names) add_file(folder_ / name);
  for (const auto& [tensor, file] : map->items()) {
    const auto found = stored_.find(tensor);
    const std::string name = file;
    if (found == stored_.end() || found->second.file->path() != folder_ / name) {
      throw DataError(
          fmt::format("{}: weight_map puts tensor {} into {}, where it is not; the index and the "
                      "files are not of one model, copy or download them again",
                      index.string(), nlohmann::json(tensor).dump(), name));
    }
  }
  if (map->size() == stored_.size()) return;
  for (const auto& [tensor, stored] : stored_) {
    if (!map->contains(tensor)) {
      throw DataError(fmt::format("{}: tensor \"{}\" is not in weight_map of {}",
                                  stored.file->path().string(), tensor, index.string()));
    }
  }
}

const HfWeights::Stored* HfWeights::find(const std::string& name) const {
  std::vector<std::string> spellings = {name, "transformer." + name};
  const std::string prefix = "model.";
  if (name.compare(0, prefix.size(), prefix) == 0) spellings[1] = name.substr(prefix.size());
  for (const std::string& spelling : spellings) {
    if (const auto found = stored_.find(spelling); found != stored_.end()) return &found->second;
  }
  return nullptr;
}

void HfWeights::match_piece(const HfPiece& piece) {
  const Stored* const stored = find(piece.name);
  if (stored == nullptr) {
    throw DataError(fmt::format("{}: tensor \"{}\" of the model is not among the {} tensors{}",
                                folder_.string(), piece.name, stored_.size(),
                                piece.name == "lm_head.weight"
                                    ? "; if the embedding is the head, tie_word_embeddings in "
                                      "config.json has to be true"
                                    : "; the weights are not of config.json's model"));
  }
  const SafetensorsEntry& entry = *stored->entry;
  const std::string file = stored->file->path().string();
  if (entry.shape != piece.shape) {
    throw DataError(fmt::format(
        "{}: tensor \"{}\" has the shape ({}), the model needs ({}); the weights are not of "
        "config.json's model",
        file, entry.name, fmt::join(entry.shape, ", "), fmt::join(piece.shape, ", ")));
  }
  stored->file->read_f32(entry, {0, 0}, nullptr);  // refuses other element types
  by_piece_[piece.name] = *stored;
}

void HfWeights::match(const ModelConfig& config) {
  const std::vector<ParameterSpec> specs = parameters(config);
  embedding_ = specs.front().pieces.front().name;
  std::set<const SafetensorsEntry*> used;
  for (const ParameterSpec& spec : specs) {
    for (const HfPiece& piece : spec.pieces) {
      match_piece(piece);
      used.insert(by_piece_.at(piece.name).entry);
    }
  }
  for (const auto& [name, stored] : stored_) {
    if (used.contains(stored.entry) || is_buffer(name)) continue;
    if (config.tie_embeddings && name == "lm_head.weight") {
      tied_head_ = &stored;
      continue;
    }
    throw DataError(
        fmt::format("{}: tensor \"{}\" belongs to no parameter of the model; the weights are not "
                    "of config.json's model",
                    stored.file->path().string(), name));
  }
}

void HfWeights::read(const ParameterSpec& parameter, Range elements, MutView values) const {
  CHECK_CONTRACT(0 <= elements.begin && elements.end <= parameter.n_elements(),
                 "a range of elements lies inside its parameter");
  CHECK_CONTRACT(values.n_elements() == elements.size(), "a range is filled exactly");
  const std::int64_t n_columns = parameter.shape.n_dims() == 2 ? parameter.shape[1] : 1;
  auto* const out = values.as<float>();
  for (const HfPiece& piece : parameter.pieces) {
    const Range whole{piece.rows.begin * n_columns, piece.rows.end * n_columns};
    const Range mine{std::max(whole.begin, elements.begin), std::min(whole.end, elements.end)};
    if (mine.empty()) continue;
    const Stored& stored = by_piece_.at(piece.name);
    const Range inside{mine.begin - whole.begin, mine.end - whole.begin};
    float* const target = out + (mine.begin - elements.begin);
    if (piece.transposed) {
      read_transposed(*stored.file, *stored.entry, inside, target);
    } else {
      stored.file->read_f32(*stored.entry, inside, target);
    }
  }
}

void HfWeights::check_tied_head() const {
  if (tied_head_ == nullptr) return;
  const Stored& table = by_piece_.at(embedding_);
  const SafetensorsEntry& head = *tied_head_->entry;
  const std::string file = tied_head_->file->path().string();
  const auto refuse = [&](const std::string& how) {
    throw DataError(fmt::format(
        "{}: tensor \"lm_head.weight\" {} \"{}\", which config.json's tie_word_embeddings says it "
        "is; write false there, or remove the tensor",
        file, how, table.entry->name));
  };
  if (head.shape != table.entry->shape) refuse("has another shape than");
  const std::int64_t n_elements = head.n_elements();
  std::vector<float> a(static_cast<std::size_t>(std::min(n_elements, n_elements_at_a_time)));
  std::vector<float> b(a.size());
  for (std::int64_t begin = 0; begin < n_elements; begin += n_elements_at_a_time) {
    const Range some{begin, std::min(begin + n_elements_at_a_time, n_elements)};
    tied_head_->file->read_f32(head, some, a.data());
    table.file->read_f32(*table.entry, some, b.data());
    if (std::memcmp(a.data(), b.data(), static_cast<std::size_t>(some.size()) * 4) != 0) {
      refuse("differs from");
    }
  }
}

std::string HfWeights::summary() const {
  std::set<std::string> dtypes;
  for (const auto& [name, stored] : by_piece_) dtypes.insert(safetensors_name(stored.entry->dtype));
  return fmt::format("{} tensors, {}, in {} file{}", by_piece_.size(), fmt::join(dtypes, " and "),
                     files_.size(), files_.size() == 1 ? "" : "s");
}

std::vector<std::string> hf_tokenizer_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"}) {
    if (std::filesystem::is_regular_file(folder / name, ignored)) names.emplace_back(name);
  }
  return names;
}

void copy_hf_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const std::string& name : hf_tokenizer_files(from)) {
    write_file_atomically(to / name, read_file(from / name));
  }
}

}  // namespace llm
