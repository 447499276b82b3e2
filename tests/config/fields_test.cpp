#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "src/config/rules.h"
#include "src/config/table.h"
#include "tests/config/support.h"

namespace llm {
namespace {

/// A value of the field's type that is not its default; ranges do not matter.
Value another_value(const Field& field) {
  const Value value = field.default_value();
  switch (field.kind) {
    case Kind::boolean:
      return !std::get<bool>(value);
    case Kind::integer:
      return std::holds_alternative<std::monostate>(value) ? std::int64_t{7}
                                                           : std::get<std::int64_t>(value) + 1;
    case Kind::real:
      return std::get<double>(value) + 0.25;
    case Kind::text:
      return std::string("another");
    case Kind::text_list:
      return std::vector<std::string>{"another", "path"};
  }
  return {};
}

std::map<std::string, int> stored_fields_per_section() {
  std::map<std::string, int> counts;
  for (const Field& field : all_fields()) counts[field.section] += field.is_stored();
  return counts;
}

}  // namespace

/// The bindings stop compiling when a struct gains or loses a member; the counts then follow.
TEST_CASE("the table has a row for each member of every section") {
  [[maybe_unused]] const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
                                m16, m17, m18, m19, m20, m21, m22, m23, m24, m25] = ModelSection{};
  [[maybe_unused]] const auto& [t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
                                t16, t17, t18, t19] = TrainingConfig{};
  [[maybe_unused]] const auto& [o1, o2, o3, o4, o5, o6, o7, o8] = OptimizationConfig{};
  [[maybe_unused]] const auto& [a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12] = DataConfig{};
  [[maybe_unused]] const auto& [d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11, d12, d13, d14, d15,
                                d16, d17, d18, d19, d20, d21, d22, d23, d24, d25, d26, d27, d28] =
      DistributedConfig{};
  [[maybe_unused]] const auto& [c1, c2, c3, c4, c5, c6] = CheckpointConfig{};
  [[maybe_unused]] const auto& [l1, l2, l3, l4] = LoggingConfig{};
  [[maybe_unused]] const auto& [n1] = NumericsConfig{};
  [[maybe_unused]] const auto& [s1, s2, s3, s4, s5, s6, s7, s8] = Config{};
  const std::map<std::string, int> counts = {
      {"model", 25},       {"training", 19},  {"optimization", 8}, {"data", 12},
      {"distributed", 28}, {"checkpoint", 6}, {"logging", 4},      {"numerics", 1}};
  CHECK(stored_fields_per_section() == counts);
}

TEST_CASE("each stored field sets and gets its own member and no other") {
  for (const Field& field : all_fields()) {
    if (!field.is_stored()) continue;
    INFO(field.path());
    Config config;
    const Value value = another_value(field);
    field.set(config, value);
    CHECK(field.get(config) == value);
    CHECK_FALSE(config == Config{});
    for (const Field& other : all_fields()) {
      if (other.is_stored() && &other != &field) CHECK(other.get(config) == other.default_value());
    }
    field.set(config, field.default_value());
    CHECK(config == Config{});
  }
}

TEST_CASE("no two fields share a name, and each has a meaning of one sentence") {
  std::set<std::string> names;
  for (const Field& field : all_fields()) {
    INFO(field.path());
    CHECK(names.insert(field.path()).second);
    for (const std::string& alias : field.aliases) {
      CHECK(names.insert(field.section + "." + alias).second);
    }
    CHECK(field.meaning.size() > 10);
    CHECK(field.meaning.back() == '.');
    CHECK((field.limit == Field::Limit::none) == field.instead.empty());
  }
}

TEST_CASE("every default lies in its own range and loads when it is written down") {
  for (const Field& field : all_fields()) {
    if (!field.is_stored()) continue;
    INFO(field.path());
    CHECK_NOTHROW(check_range(field, field.default_value(), "here"));
    CHECK_NOTHROW(check_works(field, field.default_value(), "here"));
    const LoadedConfig loaded = test::load(fmt::format("{}:\n  {}: {}", field.section, field.name,
                                                       to_yaml_text(field.default_value())));
    CHECK(loaded.config == Config{});
    CHECK(loaded.notes.empty());
  }
}

TEST_CASE("the defaults are the guide's wherever the guide has the field") {
  const Config config = test::load("").config;
  CHECK(config == Config{});
  CHECK(config.model.hidden_size == 512);
  CHECK(config.model.num_heads == 8);
  CHECK(config.model.n_kv_heads() == 8);
  CHECK(config.model.mlp_size() == 2048);
  CHECK(config.model.num_layers == 2);
  CHECK(config.model.dropout == 0.1);
  CHECK(config.model.vocab_size == 50257);
  CHECK(config.model.max_seq_len == 512);
  CHECK(config.model.norm_impl == "layer_norm");
  CHECK(config.model.mlp_activation == "gelu");
  CHECK(config.model.lm_head_bias);
  CHECK(config.model.rope_theta == 10000);
  CHECK(config.training.batch_size == 128);
  CHECK(config.training.epochs == 10);
  CHECK(config.training.lr == 1e-3);
  CHECK(config.training.weight_decay == 0.01);
  CHECK(config.training.scheduler_type == "cosine");
  CHECK(config.training.gradient_clip_val == 1.0);
  CHECK(config.optimization.use_amp);
  CHECK(config.optimization.amp_dtype == "auto");
  CHECK(config.data.data_source == "local");
  CHECK(config.data.max_seq_len == 512);
  CHECK(config.distributed.master_addr == "127.0.0.1");
  CHECK(config.distributed.master_port == "12355");
  CHECK(config.distributed.num_nodes == 1);
  CHECK(config.distributed.node_rank == 0);
  CHECK(config.distributed.parallel_strategy == "ddp");
  CHECK(config.distributed.pp_n_microbatches == 1);
  CHECK(config.distributed.collective_timeout_seconds == 1800);
  CHECK(config.distributed.fsdp_mixed_precision == "bf16");
  CHECK(config.distributed.fsdp_auto_wrap_min_params == 10'000'000);
  CHECK(config.checkpoint.keep_last_n == 5);
  CHECK(config.checkpoint.save_best);
  CHECK(config.logging.log_interval == 10);
}

TEST_CASE("every number outside of a field's range is refused with the range") {
  for (const Field& field : all_fields()) {
    const bool is_number = field.kind == Kind::integer || field.kind == Kind::real;
    if (!field.is_stored() || !is_number) continue;
    INFO(field.path());
    const double below = field.bounds.min_open ? field.bounds.min : field.bounds.min - 1;
    const double above = field.bounds.max_open ? field.bounds.max : field.bounds.max * 2 + 1;
    for (const double wrong : {below, above}) {
      const std::string message = test::refusal_of(fmt::format(
          "{}: {{{}: {}}}", field.section, field.name,
          field.kind == Kind::integer ? fmt::format("{:.0f}", wrong) : fmt::format("{}", wrong)));
      CHECK_THAT(message, Catch::EndsWith(field.bounds.text()));
      CHECK_THAT(message, Catch::Contains(": " + field.path() + ": "));
      CHECK_THAT(message, Catch::Contains(" is out of range; write "));
    }
  }
}

TEST_CASE("every choice is accepted by its check, and anything else is refused") {
  for (const Field& field : all_fields()) {
    if (field.choices.empty()) continue;
    INFO(field.path());
    for (const std::string& choice : field.choices)
      CHECK_NOTHROW(check_range(field, choice, "here"));
    CHECK_THROWS_AS(check_range(field, std::string("zzz"), "here"), ConfigError);
    for (const auto& [value, instead] : field.refused_values) {
      CHECK_THROWS_WITH(check_range(field, value, "here"), Catch::EndsWith(instead));
    }
  }
}

TEST_CASE("a nearest name is a few edits away and never a wild guess") {
  const std::vector<std::string> names = {"hidden_size", "num_heads", "num_layers"};
  CHECK(nearest_name("hiden_size", names) == "hidden_size");
  CHECK(nearest_name("num_haeds", names) == "num_heads");
  CHECK(nearest_name("numlayers", names) == "num_layers");
  CHECK_FALSE(nearest_name("zebra", names).has_value());
  CHECK_FALSE(nearest_name("", names).has_value());
  CHECK_FALSE(nearest_name(std::string(1000, 'h'), names).has_value());
}

}  // namespace llm
