#include "src/io/hf_weights.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "src/io/hf_folder.h"
#include "tests/io/temporary_folder.h"
#include "tests/io/tensors.h"
#include "tests/model/configs.h"

namespace llm {
TEST_CASE("weights written under Hugging Face names come back bit by bit") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    const TemporaryFolder folder;
    Tensors a(config);
    a.start(9);
    write_hf_weights(folder.path(), a.specs, a.values());
    Tensors b(config);
    const HfWeights weights(folder.path(), config);
    for (std::size_t i = 0; i < b.specs.size(); ++i) {
      weights.read(b.specs[i], {0, b.specs[i].n_elements()}, b.views[i]);
    }
    for (std::size_t i = 0; i < a.specs.size(); ++i) {
      const auto n_bytes = static_cast<std::size_t>(a.views[i].n_bytes());
      CHECK(std::memcmp(a.views[i].data(), b.views[i].data(), n_bytes) == 0);
    }
  }
}

TEST_CASE("a Conv1D weight is stored as (in, out), queries and keys as their own tensors") {
  const TemporaryFolder folder;
  Tensors gpt2(tiny_gpt2());
  gpt2.start(9);
  write_hf_weights(folder.path(), gpt2.specs, gpt2.values());
  const SafetensorsFile file(folder / "model.safetensors");
  CHECK(file.find("h.1.attn.c_attn.weight").shape == std::vector<std::int64_t>{16, 48});
  CHECK_FALSE(file.contains("lm_head.weight"));
  const std::vector<float> stored = file.read_f32("h.1.mlp.c_fc.weight");
  for (std::size_t i = 0; i < gpt2.specs.size(); ++i) {
    if (gpt2.specs[i].name != "blocks.1.up.weight") continue;
    const auto* internal = gpt2.views[i].as<float>();  // (40, 16)
    CHECK(stored[3 * 40 + 7] == internal[7 * 16 + 3]);
    CHECK(stored[0 * 40 + 39] == internal[39 * 16 + 0]);
  }

  Tensors llama(tiny_llama());
  llama.start(9);
  write_hf_weights(folder.path(), llama.specs, llama.values());
  const SafetensorsFile second(folder / "model.safetensors");
  CHECK(second.find("model.layers.0.self_attn.q_proj.weight").shape ==
        std::vector<std::int64_t>{16, 16});
  CHECK(second.find("model.layers.0.self_attn.v_proj.weight").shape ==
        std::vector<std::int64_t>{8, 16});
  CHECK(second.contains("lm_head.weight"));
}

}  // namespace llm
