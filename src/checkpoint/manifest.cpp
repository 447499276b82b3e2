#include "src/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/file.h"

namespace llm {
namespace {

constexpr int version = 1;
/// Far above what a million files need; a manifest is read whole.
constexpr std::int64_t max_bytes = 256 << 20;

/// How the text ends, given what stands before.
std::string ending_of(const std::string& before) {
  return fmt::format(R"(,"crc32":"{:08x}"}})", crc32(before.data(), before.size())) + "\n";
}

nlohmann::ordered_json json_of(const Manifest& manifest) {
  const RunState& run = manifest.run;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const FileRecord& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.n_bytes},
                     {"crc32", fmt::format("{:08x}", file.crc32)}});
  }
  nlohmann::ordered_json loss;
  if (run.validation_loss) loss = *run.validation_loss;
  return {{"format", "llm-train checkpoint"},
          {"version", version},
          {"state_dict_type", name_of(manifest.kind)},
          {"step", run.step},
          {"n_updates", run.n_updates},
          {"n_samples", run.n_samples},
          {"global_batch", run.global_batch},
          {"loss_scale", run.loss_scale},
          {"n_good_steps", run.n_good_steps},
          {"validation_loss", loss},
          {"data", run.data},
          {"layout", run.layout},
          {"files", files}};
}

/// A name that stays inside the folder.
bool is_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

FileRecord record_of(const nlohmann::json& json) {
  FileRecord record{.name = json.at("name"),
                    .n_bytes = json.at("bytes"),
                    .crc32 = static_cast<std::uint32_t>(
                        std::stoul(json.at("crc32").get<std::string>(), nullptr, 16))};
  if (!is_file_name(record.name)) throw std::invalid_argument("a file is not in the folder");
  return record;
}

Manifest manifest_of(const nlohmann::json& json) {
  Manifest manifest;
  manifest.kind =
      json.at("state_dict_type") == "sharded" ? CheckpointKind::sharded : CheckpointKind::full;
  RunState& run = manifest.run;
  run.step = json.at("step");
  run.n_updates = json.at("n_updates");
  run.n_samples = json.at("n_samples");
  run.global_batch = json.at("global_batch");
  run.loss_scale = json.at("loss_scale");
  run.n_good_steps = json.at("n_good_steps");
  run.data = json.at("data");
  run.layout = json.at("layout");
  const nlohmann::json& loss = json.at("validation_loss");
  if (!loss.is_null()) run.validation_loss = loss.get<double>();
  for (const nlohmann::json& file : json.at("files")) manifest.files.push_back(record_of(file));
  return manifest;
}

}  // namespace

const char* name_of(CheckpointKind kind) {
  return kind == CheckpointKind::full ? "full" : "sharded";
}

std::string to_json(const Manifest& manifest) {
  std::string text = json_of(manifest).dump();
  text.pop_back();  // the brace
  return text + ending_of(text);
}

Manifest manifest_from_json(const std::string& file, const std::string& text) {
  const std::size_t n_ending = ending_of("").size();
  if (text.size() < n_ending || text[0] != '{' ||
      ending_of(text.substr(0, text.size() - n_ending)) != text.substr(text.size() - n_ending)) {
    throw DataError(file + ": damaged: its checksum does not fit its text");
  }
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    const int written = json.at("version");
    if (written != version) {
      throw DataError(
          fmt::format("{}: format version {} is not this program's {}; use the version "
                      "of llm-train that wrote it",
                      file, written, version));
    }
    return manifest_of(json);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not a manifest: {}", file, error.what()));
  } catch (const std::logic_error& error) {  // stoul, is_file_name
    throw DataError(fmt::format("{}: not a manifest: {}", file, error.what()));
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / manifest_name;
  const InputFile file(path);
  if (file.n_bytes() > max_bytes) {
    throw DataError(
        fmt::format("{}: {} bytes are too many for a manifest", path.string(), file.n_bytes()));
  }
  std::string text(static_cast<std::size_t>(file.n_bytes()), '\0');
  file.read(0, file.n_bytes(), text.data());
  return manifest_from_json(path.string(), text);
}

}  // namespace llm
