#include <catch2/catch.hpp>

#include "src/config/table.h"
#include "tests/config/support.h"

namespace llm {
namespace {

/// What is written, and the whole answer to it.
struct Case {
  const char* yaml;
  const char* message;
};

void check_refused(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO(c.yaml);
    CHECK(test::refusal_of(c.yaml) == c.message);
  }
}

void check_noted(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO(c.yaml);
    const std::vector<std::string> notes = test::load(c.yaml).notes;
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == c.message);
  }
}

}  // namespace

TEST_CASE("broken or misshapen YAML is refused with its place") {
  check_refused({
      {"model: {hidden_size: [1", "c.yaml:1:1: not YAML: end of sequence flow not found"},
      {"model: [1]", "c.yaml:1:8: model: a section holds fields, as \"field: value\""},
      {"model: 3", "c.yaml:1:8: model: a section holds fields, as \"field: value\""},
      {"- a", "c.yaml:1:1: a configuration is a map of sections, as \"model:\""},
      {"hello", "c.yaml:1:1: a configuration is a map of sections, as \"model:\""},
      {"a: b: c", "c.yaml:1:5: not YAML: illegal map value"},
      {"model: {num_heads: 4, num_heads: 3}",
       "c.yaml:1:23: model.num_heads: set twice; the first is at c.yaml:1:9"},
      {"model: {num_heads: 4}\nmodel: {num_layers: 2}",
       "c.yaml:2:1: model: a second section of this name; the first is at c.yaml:1:1"},
      {"model: &x {num_heads: 4}",
       "c.yaml:1:8: an anchor (&name); write the value itself where it is needed"},
      {"model: {num_heads: &x 4}",
       "c.yaml:1:20: an anchor (&name); write the value itself where it is needed"},
      {"model: {num_heads: *x}", "c.yaml:1:20: not YAML: the referenced anchor is not defined"},
      {"model: &x {num_heads: 4}\ntraining: *x",
       "c.yaml:1:8: an anchor (&name); write the value itself where it is needed"},
      {"model: {<<: {num_heads: 4}}", "c.yaml:1:9: a merge key (<<); write the fields themselves"},
      {"model: {num_heads: !!int 4}",
       "c.yaml:1:20: the tag tag:yaml.org,2002:int; write the value without a tag"},
      {"model: !mine {num_heads: 4}", "c.yaml:1:8: the tag !mine; write the value without a tag"},
      {"model: {? [a] : 1}", "c.yaml:1:11: a key must be a plain name"},
      {"? {a: b}\n: 1", "c.yaml:1:3: a key must be a plain name"},
      {"{~: 1}", "c.yaml:1:2: a key without a name"},
      {"model: {}\n---\ntraining: {}",
       "c.yaml:2:1: a second document; a configuration is one document"},
      {"model: {num_heads: [4]}",
       "c.yaml:1:20: model.num_heads: a list stands where one integer belongs"},
      {"model: {num_heads: {a: 4}}",
       "c.yaml:1:20: model.num_heads: a map or a list of lists stands where one integer belongs"},
      {"data: {dataset_path: [a, [b]]}",
       "c.yaml:1:22: data.dataset_path: a map or a list of lists stands where one list of texts "
       "belongs"},
      {"data: {dataset_path: [a, ~]}",
       "c.yaml:1:22: data.dataset_path: a map or a list of lists stands where one list of texts "
       "belongs"},
      {"data: {dataset_path: {a: b}}",
       "c.yaml:1:22: data.dataset_path: a map or a list of lists stands where one list of texts "
       "belongs"},
      {"data: {dataset_path: [a, \"\"]}",
       "c.yaml:1:22: data.dataset_path: one of the list's texts is empty; remove it"},
      {"data: {dataset_path: \"a,,b\"}",
       "c.yaml:1:22: data.dataset_path: one of the list's texts is empty; remove it"},
      {"\tmodel: 1", "c.yaml:1:2: a configuration is a map of sections, as \"model:\""},
      {"model: \"a", "c.yaml:1:10: not YAML: illegal EOF in scalar"},
  });
}

TEST_CASE("an unknown name is refused with the nearest one") {
  check_refused({
      {"modle: {}", "c.yaml:1:1: modle: unknown section; did you mean model?"},
      {"zebra: {}", "c.yaml:1:1: zebra: unknown section"},
      {"model: {hiden_size: 4}",
       "c.yaml:1:9: model.hiden_size: unknown field; did you mean hidden_size?"},
      {"model: {zebra: 4}", "c.yaml:1:9: model.zebra: unknown field"},
      {"model: {Hidden_Size: 4}",
       "c.yaml:1:9: model.Hidden_Size: unknown field; did you mean hidden_size?"},
      {"hidden_size: 4",
       "c.yaml:1:1: hidden_size: a field outside of its section; it is model.hidden_size"},
      {"training: {gradient_accumulation_steps: 2}",
       "c.yaml:1:12: training.gradient_accumulation_steps: unknown field; it is "
       "optimization.gradient_accumulation_steps"},
      {"model: {\"\": 4}", "c.yaml:1:9: model.: unknown field"},
      {"training: {learning_rat: 1}",
       "c.yaml:1:12: training.learning_rat: unknown field; did you mean learning_rate?"},
  });
}

TEST_CASE("a value of another type is refused") {
  check_refused({
      {"model: {hidden_size: 010}",
       "c.yaml:1:22: model.hidden_size: 010 has a leading zero, which some read as octal; write "
       "10"},
      {"model: {hidden_size: -007}",
       "c.yaml:1:22: model.hidden_size: -007 has a leading zero, which some read as octal; write "
       "-7"},
      {"model: {hidden_size: 00}",
       "c.yaml:1:22: model.hidden_size: 00 has a leading zero, which some read as octal; write 0"},
      {"model: {hidden_size: \"2\"}",
       "c.yaml:1:22: model.hidden_size: \"2\" is a quoted text, not an integer; write it without "
       "quotes"},
      {"model: {hidden_size: '2 '}",
       "c.yaml:1:22: model.hidden_size: \"2 \" is a quoted text, not an integer; write it without "
       "quotes"},
      {"model: {hidden_size: 0x10}",
       "c.yaml:1:22: model.hidden_size: 0x10 is not an integer; write a whole number"},
      {"model: {hidden_size: 3.0}",
       "c.yaml:1:22: model.hidden_size: 3.0 is not written as an integer; write 3"},
      {"model: {hidden_size: 1e3}",
       "c.yaml:1:22: model.hidden_size: 1e3 is not written as an integer; write 1000"},
      {"model: {hidden_size: 3.5}",
       "c.yaml:1:22: model.hidden_size: 3.5 is not an integer; write a whole number"},
      {"model: {hidden_size: two}",
       "c.yaml:1:22: model.hidden_size: two is not an integer; write a whole number"},
      {"model: {hidden_size: 1__0}",
       "c.yaml:1:22: model.hidden_size: 1__0 is not an integer; write a whole number"},
      {"model: {hidden_size: 9223372036854775808}",
       "c.yaml:1:22: model.hidden_size: 9223372036854775808 is too large for any integer field"},
      {"model: {hidden_size: ~}",
       "c.yaml:1:22: model.hidden_size: is null; write an integer, or remove the line for 512"},
      {"model: {hidden_size: \"\"}",
       "c.yaml:1:22: model.hidden_size: is empty; write a value or remove it"},
      {"model: {hidden_size: true}",
       "c.yaml:1:22: model.hidden_size: true is not an integer; write a whole number"},
      {"training: {lr: .nan}",
       "c.yaml:1:16: training.lr: .nan is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: .inf}",
       "c.yaml:1:16: training.lr: .inf is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: nan}",
       "c.yaml:1:16: training.lr: nan is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: infinity}",
       "c.yaml:1:16: training.lr: infinity is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: 1e999}",
       "c.yaml:1:16: training.lr: 1e999 is outside of what a number can hold"},
      {"training: {lr: 1e-999}",
       "c.yaml:1:16: training.lr: 1e-999 is outside of what a number can hold"},
      {"training: {lr: 00.1}",
       "c.yaml:1:16: training.lr: 00.1 has a leading zero, which some read as octal; write 0.1"},
      {"training: {lr: \"0.1\"}",
       "c.yaml:1:16: training.lr: \"0.1\" is a quoted text, not a number; write it without quotes"},
      {"training: {lr: 1.5.2}",
       "c.yaml:1:16: training.lr: 1.5.2 is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: fast}",
       "c.yaml:1:16: training.lr: fast is not a finite number; write one like 0.001 or 1e-3"},
      {"training: {lr: ~}",
       "c.yaml:1:16: training.lr: is null; write a number, or remove the line for 0.001"},
      {"training: {lr: 0x1p3}",
       "c.yaml:1:16: training.lr: 0x1p3 is not a finite number; write one like 0.001 or 1e-3"},
      {"model: {use_glu: yes}",
       "c.yaml:1:18: model.use_glu: yes is not a boolean; write true or false"},
      {"model: {use_glu: 1}",
       "c.yaml:1:18: model.use_glu: 1 is not a boolean; write true or false"},
      {"model: {use_glu: \"true\"}",
       "c.yaml:1:18: model.use_glu: \"true\" is a quoted text, not a boolean; write it without "
       "quotes"},
      {"model: {use_glu: ~}",
       "c.yaml:1:18: model.use_glu: is null; write a boolean, or remove the line for false"},
      {"distributed: {device: ~}",
       "c.yaml:1:23: distributed.device: is null; write a text, or remove the line for auto"},
      {"logging: {run_dir: \"\"}",
       "c.yaml:1:20: logging.run_dir: is empty; write a value or remove it"},
      {"distributed: {master_port: http}",
       "c.yaml:1:28: distributed.master_port: http is not a port; write 1 to 65535"},
      {"distributed: {master_port: 0}",
       "c.yaml:1:28: distributed.master_port: 0 is not a port; write 1 to 65535"},
      {"distributed: {master_port: 65536}",
       "c.yaml:1:28: distributed.master_port: 65536 is not a port; write 1 to 65535"},
  });
}

TEST_CASE("a number out of range is refused with the range") {
  check_refused({
      {"model: {hidden_size: 0}",
       "c.yaml:1:22: model.hidden_size: 0 is out of range; write an integer, 1 to 1048576"},
      {"model: {hidden_size: -1}",
       "c.yaml:1:22: model.hidden_size: -1 is out of range; write an integer, 1 to 1048576"},
      {"model: {hidden_size: 1000000000}",
       "c.yaml:1:22: model.hidden_size: 1000000000 is out of range; write an integer, 1 to "
       "1048576"},
      {"model: {dropout: 1}",
       "c.yaml:1:18: model.dropout: 1 is out of range; write a number, at least 0, below 1"},
      {"model: {dropout: -0.1}",
       "c.yaml:1:18: model.dropout: -0.1 is out of range; write a number, at least 0, below 1"},
      {"training: {lr: 0}",
       "c.yaml:1:16: training.lr: 0 is out of range; write a number, more than 0, at most 1000"},
      {"training: {lr: -1}",
       "c.yaml:1:16: training.lr: -1 is out of range; write a number, more than 0, at most 1000"},
      {"training: {beta2: 1}",
       "c.yaml:1:19: training.beta2: 1 is out of range; write a number, at least 0, below 1"},
      {"training: {val_fraction: 1}",
       "c.yaml:1:26: training.val_fraction: 1 is out of range; write a number, more than 0, below "
       "1"},
      {"training: {max_steps: -1}",
       "c.yaml:1:23: training.max_steps: -1 is out of range; write an integer, 0 to 1073741824"},
      {"distributed: {zero_stage: 4}",
       "c.yaml:1:27: distributed.zero_stage: 4 is out of range; write an integer, 0 to 3"},
      {"distributed: {pp_size: -1}",
       "c.yaml:1:24: distributed.pp_size: -1 is out of range; write an integer, 0 to 1048576"},
      {"distributed: {pp_n_microbatches: 0}",
       "c.yaml:1:34: distributed.pp_n_microbatches: 0 is out of range; write an integer, 1 to "
       "16777216"},
      {"distributed: {pp_virtual_stages: 0}",
       "c.yaml:1:34: distributed.pp_virtual_stages: 0 is out of range; write an integer, 1 to "
       "4096"},
      {"distributed: {tp_size: -1}",
       "c.yaml:1:24: distributed.tp_size: -1 is out of range; write an integer, 0 to 1048576"},
      {"distributed: {collective_timeout_seconds: 0}",
       "c.yaml:1:43: distributed.collective_timeout_seconds: 0 is out of range; write a number, "
       "more than 0, at most 1000000000"},
  });
}

TEST_CASE("another choice is refused with the choices") {
  check_refused({
      {"distributed: {parallel_strategy: dpp}",
       "c.yaml:1:34: distributed.parallel_strategy: dpp is not one of ddp, fsdp, zero, tp, pp, 3d; "
       "did you mean ddp?"},
      {"distributed: {parallel_strategy: horovod}",
       "c.yaml:1:34: distributed.parallel_strategy: horovod is not one of ddp, fsdp, zero, tp, pp, "
       "3d"},
      {"model: {norm_impl: batch_norm}",
       "c.yaml:1:20: model.norm_impl: batch_norm is not one of layer_norm, rms_norm"},
      {"model: {mlp_activation: glu}",
       "c.yaml:1:25: model.mlp_activation: glu is not here; write use_glu: true with "
       "mlp_activation: silu"},
      {"model: {mlp_activation: leaky_relu}",
       "c.yaml:1:25: model.mlp_activation: leaky_relu is not here; write mlp_activation: relu or "
       "gelu"},
      {"model: {mlp_activation: gelu_new}",
       "c.yaml:1:25: model.mlp_activation: gelu_new is not one of gelu, gelu_tanh, silu, relu, "
       "swish"},
      {"model: {attn_impl: mla}",
       "c.yaml:1:20: model.attn_impl: mla is not here; multi-head latent attention is not in this "
       "version; write attn_impl: mha"},
      {"model: {attn_impl: sdpa}",
       "c.yaml:1:20: model.attn_impl: sdpa is not one of mha, flash_attn"},
      {"model: {mlp_impl: mixture}", "c.yaml:1:19: model.mlp_impl: mixture is not one of mlp, moe"},
      {"training: {scheduler_type: step}",
       "c.yaml:1:28: training.scheduler_type: step is not here; write scheduler_type: wsd or "
       "linear"},
      {"training: {scheduler_type: plateau}",
       "c.yaml:1:28: training.scheduler_type: plateau is not here; write scheduler_type: cosine or "
       "constant"},
      {"training: {scheduler_type: cosin}",
       "c.yaml:1:28: training.scheduler_type: cosin is not one of cosine, linear, constant, wsd; "
       "did you mean cosine?"},
      {"data: {data_source: hf}",
       "c.yaml:1:21: data.data_source: hf is not here; data comes from local files; download it "
       "and write data.dataset_path: FILES"},
      {"data: {data_source: dedup_local}",
       "c.yaml:1:21: data.data_source: dedup_local is not here; write data_source: local; rows are "
       "not deduplicated here"},
      {"data: {data_source: dedup_hf}",
       "c.yaml:1:21: data.data_source: dedup_hf is not here; data comes from local files; download "
       "it and write data.dataset_path: FILES"},
      {"data: {tokenizer_type: simple}",
       "c.yaml:1:24: data.tokenizer_type: simple is not here; write tokenizer_type: byte, or hf "
       "with a tokenizer.json"},
      {"data: {tokenizer_type: hf}",
       "c.yaml:1:24: data.tokenizer_type: hf needs a tokenizer.json; write data.tokenizer_path: "
       "FILE"},
      {"distributed: {backend: mpich}",
       "c.yaml:1:24: distributed.backend: mpich is not one of mpi, nccl, gloo; did you mean mpi?"},
      {"distributed: {device: gpu}",
       "c.yaml:1:23: distributed.device: gpu is not here; write device: cuda"},
      {"distributed: {pp_schedule: \"file:\"}",
       "c.yaml:1:28: distributed.pp_schedule: file: is not one of gpipe, 1f1b, 1f1b_pairs, "
       "interleaved, zero_bubble, zero_bubble_v, file:PATH"},
      {"distributed: {pp_schedule: zero_buble}",
       "c.yaml:1:28: distributed.pp_schedule: zero_buble is not one of gpipe, 1f1b, 1f1b_pairs, "
       "interleaved, zero_bubble, zero_bubble_v, file:PATH; did you mean zero_bubble?"},
      {"optimization: {amp_dtype: fp16}",
       "c.yaml:1:27: optimization.amp_dtype: fp16 is not one of auto, float32, bfloat16, float16"},
      {"logging: {progress: on}",
       "c.yaml:1:21: logging.progress: on is not one of auto, line, bar, off"},
      {"numerics: {accumulation: ring}",
       "c.yaml:1:26: numerics.accumulation: ring is not one of tree, sequential"},
      {"checkpoint: {state_dict_type: partial}",
       "c.yaml:1:31: checkpoint.state_dict_type: partial is not one of full, sharded"},
      {"distributed: {fsdp_mixed_precision: fp8}",
       "c.yaml:1:37: distributed.fsdp_mixed_precision: fp8 is not one of fp32, bf16, fp16"},
      {"optimization: {gradient_checkpointing: full}",
       "c.yaml:1:40: optimization.gradient_checkpointing: full is not one of none, block, true, "
       "false"},
  });
}

TEST_CASE("values that are legal alone are refused together") {
  check_refused({
      {"model: {num_heads: 7}",
       "c.yaml:1:20: model.num_heads: 7 does not divide model.hidden_size 512; use 4 or 8"},
      {"model: {hidden_size: 100}",
       "c.yaml:1:22: model.num_heads: 8 does not divide model.hidden_size 100; use 5 or 10"},
      {"model: {num_kv_heads: 3}",
       "c.yaml:1:23: model.num_kv_heads: 3 does not divide model.num_heads 8; use 2 or 4"},
      {"model: {num_kv_heads: 16}",
       "c.yaml:1:23: model.num_kv_heads: 16 does not divide model.num_heads 8; use 8"},
      {"model: {hidden_size: 24, use_rope: true}",
       "c.yaml:1:36: model.use_rope: rotary positions need an even head size, and "
       "model.hidden_size 24 / model.num_heads 8 is 3; use another num_heads"},
      {"model: {use_rope: true, pos_encoding_learned: true}",
       "c.yaml:1:47: model.pos_encoding_learned: true contradicts model.use_rope true; keep one "
       "kind of positions"},
      {"data: {max_seq_len: 1024}",
       "c.yaml:1:21: data.max_seq_len: 1024 is more than model.max_seq_len 512; lower it or raise "
       "model.max_seq_len"},
      {"model: {max_seq_len: 128}",
       "c.yaml:1:22: data.max_seq_len: 512 is more than model.max_seq_len 128; lower it or raise "
       "model.max_seq_len"},
      {"training: {lr: 1, learning_rate: 1}",
       "c.yaml:1:34: training.learning_rate: sets the same field as lr at c.yaml:1:16; keep one"},
      {"training: {warmup_steps: 20, max_steps: 10}",
       "c.yaml:1:26: training.warmup_steps: 20 is more than training.max_steps 10; lower it"},
      {"training: {scheduler_type: wsd, wsd_decay_steps: 8, warmup_steps: 4, max_steps: 10}",
       "c.yaml:1:50: training.wsd_decay_steps: 8 and training.warmup_steps 4 are more than "
       "training.max_steps 10; lower one"},
      {"training: {batch_size: 2}\ndistributed: {pp_n_microbatches: 3}",
       "c.yaml:2:34: distributed.pp_n_microbatches: 3 microbatches cannot be cut from "
       "training.batch_size 2 samples; lower it"},
      {"distributed: {tp_size: 2}",
       "c.yaml:1:24: distributed.tp_size: 2 contradicts parallel_strategy ddp; write "
       "parallel_strategy: tp, or tp_size: 0"},
      {"distributed: {pp_size: 2}",
       "c.yaml:1:24: distributed.pp_size: 2 contradicts parallel_strategy ddp; write "
       "parallel_strategy: pp, or pp_size: 0"},
      {"distributed: {parallel_strategy: tp, pp_size: 2}",
       "c.yaml:1:47: distributed.pp_size: 2 contradicts parallel_strategy tp; write "
       "parallel_strategy: pp, or pp_size: 0"},
      {"model: {num_experts: 4}",
       "c.yaml:1:22: model.num_experts: 4 contradicts model.mlp_impl mlp; write mlp_impl: moe, or "
       "0"},
      {"model: {top_k: 2}",
       "c.yaml:1:16: model.top_k: 2 contradicts model.mlp_impl mlp; write mlp_impl: moe, or 0"},
      {"model: {mlp_impl: moe, top_k: 2}",
       "c.yaml:1:19: model.num_experts: 0 contradicts model.mlp_impl moe; write 1 or more, or "
       "mlp_impl: mlp"},
      {"model: {mlp_impl: moe, num_experts: 8}",
       "c.yaml:1:19: model.top_k: 0 contradicts model.mlp_impl moe; write 1 or more, or mlp_impl: "
       "mlp"},
      {"model: {mlp_impl: moe, num_experts: 4, top_k: 5}",
       "c.yaml:1:47: model.top_k: 5 is more than model.num_experts 4; lower it"},
      {"distributed: {node_rank: 1}",
       "c.yaml:1:26: distributed.node_rank: 1 is not below distributed.num_nodes 1"},
      {"distributed: {backend: mpi, collectives: nccl}",
       "c.yaml:1:42: distributed.collectives: nccl contradicts distributed.backend mpi; write "
       "backend: nccl, or collectives: plan"},
      {"distributed: {backend: nccl, device: cpu}",
       "c.yaml:1:24: distributed.backend: nccl contradicts distributed.device cpu; write backend: "
       "mpi"},
  });
}

TEST_CASE("what this version does not do is refused with what to write") {
  check_refused({
      {"training: {use_adalora: true}",
       "c.yaml:1:25: training.use_adalora: true is not in this version; every parameter is "
       "trained; remove the field"},
      {"training: {use_prefix_tuning: true}",
       "c.yaml:1:31: training.use_prefix_tuning: true is not in this version; every parameter is "
       "trained; remove the field"},
      {"training: {use_ia3: true}",
       "c.yaml:1:21: training.use_ia3: true is not in this version; every parameter is trained; "
       "remove the field"},
      {"training: {use_bitfit: true}",
       "c.yaml:1:24: training.use_bitfit: true is not in this version; every parameter is trained; "
       "remove the field"},
      {"training: {use_adapter: true}",
       "c.yaml:1:25: training.use_adapter: true is not in this version; every parameter is "
       "trained; remove the field"},
      {"training: {use_qat: true}",
       "c.yaml:1:21: training.use_qat: true is not in this version; remove the field"},
      {"training: {peft_method: lora}",
       "c.yaml:1:25: training.peft_method: lora is not in this version; every parameter is "
       "trained; remove the field"},
      {"training: {peft_kwargs: {r: 8}}",
       "c.yaml:1:25: training.peft_kwargs: a map or a list of lists is not in this version; every "
       "parameter is trained; remove the field"},
      {"training: {dpo_beta: 0.1}",
       "c.yaml:1:22: training.dpo_beta: 0.1 is not in this version; the tasks are lm, "
       "stream_lm and sft; remove the field"},
      {"training: {grpo_group_size: 4}",
       "c.yaml:1:29: training.grpo_group_size: 4 is not in this version; the tasks are lm, "
       "stream_lm and sft; remove the field"},
      {"data: {tokenizer_path: t.json}",
       "c.yaml:1:24: data.tokenizer_path: t.json contradicts data.tokenizer_type byte; write "
       "tokenizer_type: hf, or remove it"},
      {"distributed: {expert_parallel: tp}",
       "c.yaml:1:32: distributed.expert_parallel: tp is not one of none, dp; did you mean dp?"},
      {"distributed: {sequence_parallel: true}",
       "c.yaml:1:34: distributed.sequence_parallel: true contradicts parallel_strategy ddp, whose "
       "ranks share no layer; write parallel_strategy: tp, or sequence_parallel: false"},
  });
}

TEST_CASE("a field of the guide's without a counterpart is refused with what to write") {
  check_refused({
      {"ppo: {clip_epsilon: 0.2}",
       "c.yaml:1:1: ppo: reinforcement learning is not in this version: the tasks are lm, "
       "stream_lm and sft; remove the section"},
      {"rlhf: {}",
       "c.yaml:1:1: rlhf: reinforcement learning is not in this version: the tasks are lm, "
       "stream_lm and sft; remove the section"},
      {"model: {attn_sparse: {kind: streaming}}",
       "c.yaml:1:22: model.attn_sparse: a map or a list of lists has no counterpart here; "
       "attention is dense and causal; remove the field"},
      {"model: {use_kv_cache: true}",
       "c.yaml:1:23: model.use_kv_cache: true has no counterpart here; training never caches; "
       "remove the field"},
      {"model: {norm_first: false}",
       "c.yaml:1:21: model.norm_first: false has no counterpart here; blocks normalise first; "
       "write norm_first: true"},
      {"model: {use_alibi: true}",
       "c.yaml:1:20: model.use_alibi: true has no counterpart here; write use_rope: true or "
       "pos_encoding_learned: true"},
      {"training: {num_samples: 20000}",
       "c.yaml:1:25: training.num_samples: has no counterpart here; samples are what "
       "data.dataset_path holds; training.max_steps caps a run"},
      {"training: {warmup_epochs: 1}",
       "c.yaml:1:27: training.warmup_epochs: 1 has no counterpart here; write "
       "training.warmup_steps, in optimizer steps"},
      {"optimization: {use_compile: true}",
       "c.yaml:1:29: optimization.use_compile: true has no counterpart here; kernels are compiled "
       "ahead; write use_compile: false"},
      {"optimization: {compile_mode: default}",
       "c.yaml:1:30: optimization.compile_mode: default has no counterpart here; kernels are "
       "compiled ahead; remove the field"},
      {"optimization: {compile_dynamic: true}",
       "c.yaml:1:33: optimization.compile_dynamic: true has no counterpart here; kernels are "
       "compiled ahead; remove the field"},
      {"optimization: {num_workers: 4}",
       "c.yaml:1:29: optimization.num_workers: 4 has no counterpart here; the data feed of each "
       "rank reads ahead by itself; remove the field"},
      {"optimization: {persistent_workers: true}",
       "c.yaml:1:36: optimization.persistent_workers: true has no counterpart here; the data feed "
       "of each rank reads ahead by itself; remove the field"},
      {"optimization: {prefetch_factor: 2}",
       "c.yaml:1:33: optimization.prefetch_factor: 2 has no counterpart here; the data feed of "
       "each rank reads ahead by itself; remove the field"},
      {"data: {dataset_name: c4}",
       "c.yaml:1:22: data.dataset_name: c4 has no counterpart here; data comes from local files; "
       "download it and write data.dataset_path: FILES"},
      {"data: {dataset_config: en}",
       "c.yaml:1:24: data.dataset_config: en has no counterpart here; data comes from local files; "
       "download it and write data.dataset_path: FILES"},
      {"data: {dataset_split: train}",
       "c.yaml:1:23: data.dataset_split: train has no counterpart here; data comes from local "
       "files; download it and write data.dataset_path: FILES"},
      {"data: {seen_hashes_path: h}",
       "c.yaml:1:26: data.seen_hashes_path: h has no counterpart here; rows are not deduplicated "
       "here; deduplicate the files and remove it"},
      {"data: {write_seen_hashes: true}",
       "c.yaml:1:27: data.write_seen_hashes: true has no counterpart here; rows are not "
       "deduplicated here; deduplicate the files and remove it"},
      {"data: {hash_algo: sha256}",
       "c.yaml:1:19: data.hash_algo: sha256 has no counterpart here; rows are not deduplicated "
       "here; deduplicate the files and remove it"},
      {"checkpoint: {save_interval: 1}",
       "c.yaml:1:29: checkpoint.save_interval: has no counterpart here; write "
       "checkpoint.save_interval_steps, in optimizer steps"},
      {"logging: {log_dir: logs}",
       "c.yaml:1:20: logging.log_dir: has no counterpart here; write logging.run_dir: FOLDER"},
      {"logging: {save_logs: false}",
       "c.yaml:1:22: logging.save_logs: false has no counterpart here; metrics.jsonl is always "
       "written; write save_logs: true"},
  });
}

TEST_CASE("what has no effect is accepted with a note") {
  check_noted({
      {"model: {attn_impl: flash_attn}",
       "c.yaml:1:20: model.attn_impl: causal grouped-query attention on tiles is what every value "
       "means here"},
      {"model: {use_kv_cache: false}",
       "c.yaml:1:23: model.use_kv_cache: training never caches keys and values"},
      {"model: {norm_first: true}", "c.yaml:1:21: model.norm_first: blocks always normalise first"},
      {"model: {use_alibi: false}",
       "c.yaml:1:20: model.use_alibi: there are no linear attention biases here"},
      {"training: {use_qat: false}", "c.yaml:1:21: training.use_qat: weights are not quantized"},
      {"training: {use_ia3: false}", "c.yaml:1:21: training.use_ia3: every parameter is trained"},
      {"optimization: {use_compile: false}",
       "c.yaml:1:29: optimization.use_compile: kernels are compiled ahead"},
      {"optimization: {pin_memory: true}",
       "c.yaml:1:28: optimization.pin_memory: buffers are pinned where a device needs it, whatever "
       "this says"},
      {"data: {skip_undecodable_rows: true}",
       "c.yaml:1:31: data.skip_undecodable_rows: text is read as bytes: every row decodes"},
      {"distributed: {backend: gloo}", "c.yaml:1:24: distributed.backend: gloo means mpi"},
      {"distributed: {master_addr: 10.0.0.1, master_port: \"999\"}",
       "c.yaml:1:28: distributed.master_addr: MPI needs neither master_addr nor master_port"},
      {"distributed: {fsdp_mixed_precision: fp32}",
       "c.yaml:1:37: distributed.fsdp_mixed_precision: has no effect without parallel_strategy: "
       "fsdp; optimization.amp_dtype decides"},
      {"distributed: {fsdp_auto_wrap_min_params: 0}",
       "c.yaml:1:42: distributed.fsdp_auto_wrap_min_params: has no effect without "
       "parallel_strategy: fsdp or zero_stage: 3"},
      {"distributed: {fsdp_prefetch_units: 2}",
       "c.yaml:1:36: distributed.fsdp_prefetch_units: has no effect without parallel_strategy: "
       "fsdp or zero_stage: 3"},
      {"distributed: {fsdp_reshard_after_forward: false, zero_stage: 2}",
       "c.yaml:1:43: distributed.fsdp_reshard_after_forward: has no effect without "
       "parallel_strategy: fsdp or zero_stage: 3"},
      {"distributed: {fsdp_cpu_offload: true}",
       "c.yaml:1:33: distributed.fsdp_cpu_offload: has no effect without parallel_strategy: fsdp "
       "or "
       "zero_stage: 3"},
      {"distributed: {parallel_strategy: fsdp}\noptimization: {amp_dtype: float16, use_amp: true}",
       "c.yaml:2:27: optimization.amp_dtype: has no effect under parallel_strategy: fsdp, where "
       "distributed.fsdp_mixed_precision decides"},
      {"logging: {log_level: DEBUG}",
       "c.yaml:1:22: logging.log_level: logging.progress decides what is printed"},
      {"logging: {save_logs: true}",
       "c.yaml:1:22: logging.save_logs: metrics.jsonl in logging.run_dir is always written"},
      {"model: {rope_theta: 500000}",
       "c.yaml:1:21: model.rope_theta: has no effect without model.use_rope: true"},
      {"model: {router_aux_loss_coef: 0.1}",
       "c.yaml:1:31: model.router_aux_loss_coef: has no effect without model.mlp_impl: moe"},
      {"model: {router_z_loss_coef: 0}",
       "c.yaml:1:29: model.router_z_loss_coef: has no effect without model.mlp_impl: moe"},
      {"training: {wsd_decay_steps: 5}",
       "c.yaml:1:29: training.wsd_decay_steps: has no effect without training.scheduler_type: wsd"},
      {"data: {shuffle: false, shuffle_buffer: 8}",
       "c.yaml:1:40: data.shuffle_buffer: has no effect without data.shuffle: true"},
  });
}

TEST_CASE("harmless values of absent fields are accepted in silence") {
  for (const char* yaml :
       {"model: {num_experts: 0, top_k: 0, attn_sparse: null}",
        "training: {warmup_epochs: 0, peft_method: null}",
        "optimization: {num_workers: 0, persistent_workers: false, compile_mode: null}",
        "data: {dataset_name: null, write_seen_hashes: false}"}) {
    INFO(yaml);
    const LoadedConfig loaded = test::load(yaml);
    CHECK(loaded.config == Config{});
    CHECK(loaded.notes.empty());
  }
}

TEST_CASE("an unknown field is refused before its value is looked at") {
  CHECK_THAT(test::refusal_of("model: {hiden_size: [[}"),
             Catch::StartsWith("c.yaml:1:23: not YAML"));
  CHECK_THAT(test::refusal_of("model: {hiden_size: 010}"), Catch::Contains("unknown field"));
}

TEST_CASE("a file of more than a mebibyte is refused before it is parsed") {
  CHECK(test::refusal_of(std::string((1 << 20) + 1, '[')) ==
        "c.yaml: 1048577 bytes; a configuration has at most 1048576");
}

TEST_CASE("deep nesting is refused and does not end the process") {
  CHECK_THAT(test::refusal_of("data: {dataset_path: " + std::string(100000, '[')),
             Catch::StartsWith("c.yaml:1:"));
}

TEST_CASE("a long or unprintable value is shown on one short line") {
  CHECK(test::refusal_of("model: {hidden_size: " + std::string(1000, 'x') + "}") ==
        "c.yaml:1:22: model.hidden_size: " + std::string(60, 'x') +
            "... is not an integer; write a whole number");
  CHECK(test::refusal_of("model: {norm_impl: \"a\\nb\\e[31m\"}") ==
        "c.yaml:1:20: model.norm_impl: a\\x0ab\\x1b[31m is not one of layer_norm, rms_norm");
}

TEST_CASE("every limited field refuses a value that it does not accept, with its own words") {
  for (const Field& field : all_fields()) {
    if (field.limit == Field::Limit::none || field.kind != Kind::boolean) continue;
    INFO(field.path());
    int n_refused = 0;
    for (const char* flag : {"true", "false"}) {
      const std::string message =
          test::refusal_of(field.section + ": {" + field.name + ": " + flag + "}");
      if (message == "accepted") continue;
      ++n_refused;
      CHECK_THAT(message, Catch::EndsWith("; " + field.instead));
    }
    CHECK(n_refused == 1);
  }
}

}  // namespace llm
