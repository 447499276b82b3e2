#include "src/io/hf_folder.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "src/base/error.h"
#include "src/io/hf_weights.h"
#include "tests/io/temporary_folder.h"
#include "tests/io/tensors.h"
#include "tests/model/configs.h"

namespace llm {
namespace {

constexpr const char* single = "model.safetensors";

/// A model's weights as tensors under Hugging Face names, to be changed and written in any way.
struct Stored {
  explicit Stored(const ModelConfig& config) : tensors(config) {
    tensors.start(9);
    for (std::size_t i = 0; i < tensors.specs.size(); ++i) {
      for (const HfPiece& piece : tensors.specs[i].pieces) {
        outputs.push_back(
            {piece.name, Dtype::f32, piece.shape, [this, i, &piece](std::span<std::byte> bytes) {
               const auto n = static_cast<std::int64_t>(bytes.size() / 4);
               to_logical(piece, tensors.views[i], MutView(bytes.data(), Dtype::f32, {n}));
             }});
      }
    }
  }
  SafetensorsOutput& find(const std::string& name) {
    for (SafetensorsOutput& output : outputs) {
      if (output.name == name) return output;
    }
    throw ContractBroken("no such tensor");
  }
  void add(const std::string& name, Dtype dtype, std::vector<std::int64_t> shape) {
    outputs.push_back({name, dtype, std::move(shape), [](std::span<std::byte> bytes) {
                         std::fill(bytes.begin(), bytes.end(), std::byte{0});
                       }});
  }
  /// The tensors from `begin` to `end` as a file.
  void write(const std::filesystem::path& path, std::size_t begin, std::size_t end) const {
    write_safetensors(path, {outputs.begin() + static_cast<std::ptrdiff_t>(begin),
                             outputs.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  void write(const TemporaryFolder& folder) const { write(folder / single, 0, outputs.size()); }
  /// Two files and their index, whose weight_map is returned too.
  nlohmann::json write_sharded(const TemporaryFolder& folder) const {
    const std::size_t half = outputs.size() / 2;
    write(folder / "a.safetensors", 0, half);
    write(folder / "b.safetensors", half, outputs.size());
    nlohmann::json map;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      map[outputs[i].name] = i < half ? "a.safetensors" : "b.safetensors";
    }
    write_index(folder, map);
    return map;
  }
  static void write_index(const TemporaryFolder& folder, const nlohmann::json& map) {
    write_file_atomically(
        folder / "model.safetensors.index.json",
        nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  }
  Tensors tensors;
  std::vector<SafetensorsOutput> outputs;
};

/// How many elements the folder gives otherwise than `expected`.
std::int64_t n_different(const HfWeights& weights, const Tensors& expected) {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < expected.specs.size(); ++i) {
    const ParameterSpec& spec = expected.specs[i];
    std::vector<float> values(static_cast<std::size_t>(spec.n_elements()));
    weights.read(spec, {0, spec.n_elements()}, MutView(values.data(), {spec.n_elements()}));
    const auto* x = expected.views[i].as<float>();
    for (std::size_t k = 0; k < values.size(); ++k) n += values[k] == x[k] ? 0 : 1;
  }
  return n;
}

void check_refused(const TemporaryFolder& folder, const ModelConfig& config,
                   const std::vector<std::string>& words) {
  try {
    HfWeights(folder.path(), config).check_tied_head();
  } catch (const Error& error) {
    for (const std::string& word : words) CHECK_THAT(error.what(), Catch::Contains(word));
    CHECK_THAT(error.what(), Catch::Contains(folder.path().string()));
    return;
  }
  FAIL("not refused: " << words.front());
}

}  // namespace

TEST_CASE("any part of any parameter is that part of the whole, from one file and from shards") {
  std::mt19937 random(3);
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    const Stored stored(config);
    const TemporaryFolder folder;
    const TemporaryFolder shards;
    stored.write(folder);
    stored.write_sharded(shards);
    const HfWeights one(folder.path(), config);
    const HfWeights two(shards.path(), config);
    CHECK(n_different(one, stored.tensors) == 0);
    CHECK(n_different(two, stored.tensors) == 0);
    CHECK_THAT(two.summary(), Catch::EndsWith("F32, in 2 files"));
    std::int64_t n_wrong = 0;
    for (std::size_t i = 0; i < stored.tensors.specs.size(); ++i) {
      const ParameterSpec& spec = stored.tensors.specs[i];
      for (int k = 0; k < 10; ++k) {
        const auto a = static_cast<std::int64_t>(random()) % (spec.n_elements() + 1);
        const auto b = static_cast<std::int64_t>(random()) % (spec.n_elements() + 1);
        const Range part{std::min(a, b), std::max(a, b)};
        std::vector<float> values(static_cast<std::size_t>(part.size()) + 1, -1.0f);
        one.read(spec, part, MutView(values.data(), {part.size()}));
        const auto* x = stored.tensors.views[i].as<float>() + part.begin;
        n_wrong += std::equal(values.begin(), values.end() - 1, x) && values.back() == -1 ? 0 : 1;
      }
    }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("a transposed tensor of several tiles is read in parts as it is whole") {
  ModelConfig config = tiny_gpt2();
  config.n_layers = 1;
  config.hidden_size = 64;
  config.intermediate_size = 40'000;  // 2.5 tiles of rows
  const Stored stored(config);
  const TemporaryFolder folder;
  stored.write(folder);
  const HfWeights weights(folder.path(), config);
  CHECK(n_different(weights, stored.tensors) == 0);
  for (std::size_t i = 0; i < stored.tensors.specs.size(); ++i) {
    const ParameterSpec& spec = stored.tensors.specs[i];
    if (spec.role != Role::up_weight && spec.role != Role::down_weight) continue;
    const Range part{1'000'001, 2'300'007};
    std::vector<float> values(static_cast<std::size_t>(part.size()));
    weights.read(spec, part, MutView(values.data(), {part.size()}));
    CHECK(
        std::equal(values.begin(), values.end(), stored.tensors.views[i].as<float>() + part.begin));
  }
}

TEST_CASE("names with GPT-2's prefix, without Llama's, and stored buffers are read") {
  const TemporaryFolder folder;
  Stored gpt2(tiny_gpt2());
  for (SafetensorsOutput& output : gpt2.outputs) output.name = "transformer." + output.name;
  gpt2.add("transformer.h.0.attn.bias", Dtype::u8, {1, 1, 12, 12});
  gpt2.add("transformer.h.1.attn.masked_bias", Dtype::f32, {});
  gpt2.write(folder);
  CHECK(n_different(HfWeights(folder.path(), tiny_gpt2()), gpt2.tensors) == 0);

  Stored llama(tiny_llama());
  for (SafetensorsOutput& output : llama.outputs) {
    if (output.name.rfind("model.", 0) == 0) output.name.erase(0, 6);
  }
  llama.add("layers.0.self_attn.rotary_emb.inv_freq", Dtype::f32, {2});
  llama.write(folder);
  CHECK(n_different(HfWeights(folder.path(), tiny_llama()), llama.tensors) == 0);
}

TEST_CASE("a head that is stored beside a tied embedding has to be the embedding") {
  const ModelConfig config = tiny_gpt2();
  Stored stored(config);
  SafetensorsOutput head = stored.find("wte.weight");
  head.name = "lm_head.weight";
  stored.outputs.push_back(head);
  const TemporaryFolder folder;
  stored.write(folder);
  const HfWeights weights(folder.path(), config);
  CHECK_NOTHROW(weights.check_tied_head());
  CHECK(n_different(weights, stored.tensors) == 0);
  stored.outputs.back().fill = [fill = head.fill](std::span<std::byte> bytes) {
    fill(bytes);
    bytes[bytes.size() - 2] ^= std::byte{1};
  };
  stored.write(folder);
  check_refused(folder, config,
                {"lm_head.weight", "differs from \"wte.weight\"", "tie_word_embeddings"});
  stored.outputs.back().shape = {16, 29};
  stored.write(folder);
  check_refused(folder, config, {"lm_head.weight", "has another shape", "tie_word_embeddings"});
}

TEST_CASE("weights of another model are refused by the tensor's name and both shapes") {
  const TemporaryFolder folder;
  const Stored stored(tiny_gpt2());
  stored.write(folder);
  const auto changed = [](auto change) {
    ModelConfig config = tiny_gpt2();
    change(config);
    return config;
  };
  check_refused(folder, changed([](ModelConfig& c) { c.intermediate_size = 48; }),
                {single, "\"h.0.mlp.c_fc.weight\"", "(16, 40)", "(16, 48)"});
  check_refused(folder, changed([](ModelConfig& c) { c.n_layers = 3; }),
                {"\"h.2.ln_1.weight\"", "not among the 28 tensors"});
  check_refused(folder, changed([](ModelConfig& c) { c.n_layers = 1; }),
                {"\"h.1.", "belongs to no parameter"});
  check_refused(folder, changed([](ModelConfig& c) { c.tie_embeddings = false; }),
                {"\"lm_head.weight\"", "tie_word_embeddings"});
  Stored integers(tiny_gpt2());
  integers.find("ln_f.bias").dtype = Dtype::i32;
  integers.write(folder);
  check_refused(folder, tiny_gpt2(), {"\"ln_f.bias\" holds I32", "F32, BF16 or F16"});
}

TEST_CASE("an index that does not fit its files is refused by the tensor and the file") {
  const ModelConfig config = tiny_llama();
  const Stored stored(config);
  const TemporaryFolder folder;
  const nlohmann::json map = stored.write_sharded(folder);
  const std::string first = stored.outputs.front().name;
  const auto refused = [&](const std::string& name, const nlohmann::json& file,
                           const std::vector<std::string>& words) {
    nlohmann::json changed = map;
    changed[name] = file;
    Stored::write_index(folder, changed);
    check_refused(folder, config, words);
  };
  refused(first, "b.safetensors", {first, "b.safetensors, where it is not"});
  refused("x.weight", "a.safetensors", {"\"x.weight\"", "where it is not"});
  refused("x.weight", "c.safetensors", {"c.safetensors"});
  for (const nlohmann::json& name :
       std::vector<nlohmann::json>{"../a.safetensors", "/etc/passwd", "a.bin", "", 3, nullptr}) {
    refused(first, name, {first, "no name of a .safetensors file"});
  }
  nlohmann::json shorter = map;
  shorter.erase(first);
  Stored::write_index(folder, shorter);
  check_refused(folder, config, {first, "not in weight_map"});
  Stored::write_index(folder, map);
  stored.write(folder / "b.safetensors", 0, stored.outputs.size());
  check_refused(folder, config, {"b.safetensors", "is in", "a.safetensors too"});
  for (const char* text : {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":\"b\"",
                           "{\"a\":1,\"a\":1}"}) {
    write_file_atomically(folder / "model.safetensors.index.json", text);
    check_refused(folder, config, {"model.safetensors.index.json"});
  }
}

TEST_CASE("a folder without weights is refused with what it lacks") {
  const TemporaryFolder folder;
  check_refused(folder, tiny_gpt2(),
                {"neither model.safetensors nor model.safetensors.index.json"});
  write_file_atomically(folder / "pytorch_model.bin", "x");
  check_refused(folder, tiny_gpt2(), {"safe_serialization=True"});
}

TEST_CASE("a tokenizer's files are copied as they are, and nothing else") {
  const TemporaryFolder from;
  const TemporaryFolder to;
  write_file_atomically(from / "tokenizer.json", "{ }\n");
  write_file_atomically(from / "config.json", "{}");
  copy_hf_tokenizer(from.path(), to.path());
  CHECK(read_file(to / "tokenizer.json") == "{ }\n");
  CHECK_FALSE(std::filesystem::exists(to / "config.json"));
}

}  // namespace llm
