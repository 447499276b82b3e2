#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "src/base/file.h"
#include "src/io/hf_config.h"
#include "src/io/hf_folder.h"
#include "src/io/hf_weights.h"
#include "src/model/cached_decoder.h"
#include "tests/golden/golden.h"
#include "tests/io/temporary_folder.h"
#include "tests/model/whole_model.h"

namespace llm {
namespace {

std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(GOLDEN_FOLDER) / name;
}

/// The folder's model with the folder's weights.
struct ReadModel : WholeModel {
  explicit ReadModel(const std::filesystem::path& folder)
      : WholeModel(read_hf_config(folder).model) {
    const HfWeights weights(folder, decoder.config());
    weights.check_tied_head();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      weights.read(specs[i], {0, specs[i].n_elements()}, values[i]);
    }
  }
};

void write_model(const WholeModel& model, const std::filesystem::path& folder) {
  const std::vector<View> values(model.values.begin(), model.values.end());
  write_hf_weights(folder, model.specs, values);
  write_file_atomically(folder / "config.json", hf_config_json(model.decoder.config()).value());
}

const std::vector<std::string> names = {"hf_gpt2", "hf_llama", "hf_mixtral", "hf_llama_sharded"};

}  // namespace

TEST_CASE("checkpoints of an independent script give its logits") {
  for (const std::string& name : names) {
    INFO(name);
    ReadModel model(golden_folder(name));
    const SafetensorsFile expected(golden_folder(name) / "expected.safetensors");
    const SafetensorsEntry& tokens = expected.find("tokens");
    TestBatch batch;
    batch.batch = tokens.shape[0];
    batch.seq_len = tokens.shape[1];
    batch.training = false;
    batch.tokens.resize(static_cast<std::size_t>(tokens.n_elements()));
    expected.read(tokens, {0, tokens.n_elements()}, batch.tokens.data());
    const std::vector<float> logits = model.logits(batch);
    std::vector<double> golden(logits.size());
    const SafetensorsEntry& entry = expected.find("logits");
    REQUIRE(entry.n_elements() == static_cast<std::int64_t>(logits.size()));
    expected.read(entry, {0, entry.n_elements()}, golden.data());
    double worst = 0;
    double largest = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - golden[i]));
      largest = std::max(largest, std::abs(golden[i]));
    }
    WARN(name << ": logits up to " << largest << ", the largest difference is " << worst);
    CHECK(largest > 1);
    CHECK(worst <= 1e-5);
  }
}

TEST_CASE("token by token, checkpoints of an independent script give its logits") {
  for (const std::string& name : names) {
    INFO(name);
    const ReadModel model(golden_folder(name));
    std::vector<Values> values;
    const ModelConfig& config = model.decoder.config();
    const Range layers = all_layers(config);
    for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
      values.push_back(model.layer(layer));
    }
    const SafetensorsFile expected(golden_folder(name) / "expected.safetensors");
    const SafetensorsEntry& tokens = expected.find("tokens");
    const std::int64_t seq_len = tokens.shape[1];
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.n_elements()));
    expected.read(tokens, {0, tokens.n_elements()}, ids.data());
    std::vector<double> golden(static_cast<std::size_t>(tokens.n_elements() * config.vocab_size));
    expected.read(expected.find("logits"), {0, static_cast<std::int64_t>(golden.size())},
                  golden.data());
    Queue queue;
    CachedDecoder cached(model.decoder, values, seq_len, queue);
    double worst = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i % static_cast<std::size_t>(seq_len) == 0) cached.restart();
      const View logits = cached.read(std::span(ids).subspan(i, 1));
      for (std::int64_t v = 0; v < config.vocab_size; ++v) {
        const double expected_logit =
            golden[i * static_cast<std::size_t>(config.vocab_size) + static_cast<std::size_t>(v)];
        worst = std::max(worst, std::abs(double{logits.as<float>()[v]} - expected_logit));
      }
    }
    WARN(name << ": token by token, the largest difference is " << worst);
    CHECK(worst <= 1e-5);
  }
}

TEST_CASE("a checkpoint read and written has the same bytes") {
  for (const std::string name : {"hf_gpt2", "hf_llama", "hf_mixtral"}) {
    INFO(name);
    const TemporaryFolder folder;
    write_model(ReadModel(golden_folder(name)), folder.path());
    CHECK(read_file(folder / "model.safetensors") ==
          read_file(golden_folder(name) / "model.safetensors"));
  }
}

TEST_CASE("16-bit shards are read exactly: written as F32 and read again they are the same") {
  const TemporaryFolder folder;
  const ReadModel model(golden_folder("hf_llama_sharded"));
  write_model(model, folder.path());
  const ReadModel again(folder.path());
  for (std::size_t i = 0; i < model.specs.size(); ++i) {
    const auto* a = model.values[i].as<float>();
    const auto* b = again.values[i].as<float>();
    CHECK(std::equal(a, a + model.specs[i].n_elements(), b));
  }
}

TEST_CASE("config.json of a checkpoint and the one written for its model say the same model") {
  for (const std::string& name : names) {
    INFO(name);
    const TemporaryFolder folder;
    const HfConfig golden = read_hf_config(golden_folder(name));
    const std::string text = hf_config_json(golden.model, golden.ids).value();
    write_file_atomically(folder / "config.json", text);
    const HfConfig again = read_hf_config(folder.path());
    CHECK(hf_config_json(again.model, again.ids).value() == text);
    CHECK(again.ids.end == golden.ids.end);
    CHECK(again.model.rope_theta == golden.model.rope_theta);
  }
}

}  // namespace llm
