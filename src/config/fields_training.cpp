#include "src/config/rows.h"

namespace llm {
namespace {

void guide_only(Rows<TrainingConfig>& rows) {
  rows.guide("num_samples", Kind::integer, "Size of the guide's synthetic data.")
      .never_but({}, "samples are what data.dataset_path holds; training.max_steps caps a run");
  rows.guide("warmup_epochs", Kind::integer, "Warm-up of the guide's, in epochs.")
      .never_but({Value{}, std::int64_t{0}}, "write training.warmup_steps, in optimizer steps");
  for (const char* name :
       {"use_adalora", "use_prefix_tuning", "use_ia3", "use_bitfit", "use_adapter"}) {
    rows.guide(name, Kind::boolean, "Parameter-efficient fine-tuning.")
        .later({Value{}, false}, "every parameter is trained; remove the field")
        .note("every parameter is trained");
  }
  rows.guide("use_qat", Kind::boolean, "Quantization-aware training.")
      .later({Value{}, false}, "remove the field")
      .note("weights are not quantized");
  for (const char* name : {"adalora_init_rank",
                           "adalora_target_rank",
                           "adalora_alpha",
                           "adalora_orth_reg_weight",
                           "adalora_ema_alpha",
                           "adalora_tinit",
                           "adalora_tfinal",
                           "adalora_prune_every",
                           "adalora_target_modules",
                           "prefix_tuning_len",
                           "prefix_reparam_hidden",
                           "prefix_target_modules",
                           "ia3_init_scale",
                           "ia3_target_modules",
                           "bitfit_target_modules",
                           "adapter_bottleneck_dim",
                           "adapter_target_modules",
                           "peft_method",
                           "peft_kwargs",
                           "peft_save_path",
                           "qat_bits",
                           "qat_quant_activation",
                           "qat_target_modules"}) {
    rows.guide(name, Kind::text, "Belongs to fine-tuning methods that are not in this version.")
        .later({Value{}}, "every parameter is trained; remove the field");
  }
  for (const char* name : {"dpo_beta", "simpo_beta", "simpo_gamma", "simpo_lambda",
                           "distill_temperature", "distill_alpha", "distill_teacher_path",
                           "grpo_clip_eps", "grpo_kl_beta", "grpo_group_size"}) {
    rows.guide(name, Kind::text, "Belongs to tasks that are not in this version.")
        .later({Value{}}, "the tasks are lm, stream_lm and sft; remove the field");
  }
}

void optimizer_fields(Rows<TrainingConfig>& rows) {
  using T = TrainingConfig;
  rows.add("lr", &T::lr, "Peak learning rate.")
      .in({.min = 0, .max = 1e3, .min_open = true})
      .also("learning_rate");
  rows.add("scheduler_type", &T::scheduler_type,
           "Learning rate after the warm-up, per optimizer step: down to min_lr_ratio x lr along a "
           "cosine or a line, constant, or constant with a final linear decay (wsd).")
      .of({"cosine", "linear", "constant", "wsd"})
      .without("step", "write scheduler_type: wsd or linear")
      .without("plateau", "write scheduler_type: cosine or constant");
  rows.add("warmup_steps", &T::warmup_steps,
           "Optimizer steps over which the learning rate rises linearly to lr.");
  rows.add("min_lr_ratio", &T::min_lr_ratio, "Last learning rate as a part of lr.")
      .in(between(0, 1));
  rows.add("wsd_decay_steps", &T::wsd_decay_steps,
           "Optimizer steps of the final decay under wsd; null means a tenth of all steps.")
      .in(between(1, count_max));
  rows.add("weight_decay", &T::weight_decay,
           "Decoupled decay of AdamW, on matrices only: never on biases and norms.")
      .in(between(0, 1e3));
  rows.add("decay_embeddings", &T::decay_embeddings,
           "Token and position embeddings decay too (a tied head decays with its embedding).");
  rows.add("beta1", &T::beta1, "AdamW: decay of the mean of gradients.").in(from_below(0, 1));
  rows.add("beta2", &T::beta2, "AdamW: decay of the mean of squares.").in(from_below(0, 1));
  rows.add("adam_eps", &T::adam_eps, "AdamW: added to the root of the mean of squares.")
      .in({.min = 0, .max = 1, .min_open = true});
  rows.add("gradient_clip_val", &T::gradient_clip_val,
           "Largest global norm of the gradient; larger ones are scaled down to it, 0 is off.")
      .in(between(0, 1e30));
}

}  // namespace

std::vector<Field> training_fields() {
  using T = TrainingConfig;
  Rows<T> rows("training", &Config::training);
  rows.add("batch_size", &T::batch_size,
           "Samples of one accumulation step on each data-parallel rank, cut into "
           "distributed.pp_n_microbatches microbatches.")
      .in(between(1, 1 << 24));
  rows.add("global_batch_size", &T::global_batch_size,
           "Samples of one optimizer step on all ranks; the accumulation steps follow from it. "
           "null means batch_size x accumulation steps x data-parallel ranks.")
      .in(between(1, count_max));
  rows.add("epochs", &T::epochs, "Passes over the data, unless max_steps ends the run before.")
      .in(between(1, 1 << 24));
  rows.add("max_steps", &T::max_steps, "Optimizer steps after which the run ends; 0 is no cap.");
  rows.add("seed", &T::seed, "Key of everything drawn: weights, sample order, dropout.")
      .in(between(0, 1LL << 53));
  optimizer_fields(rows);
  rows.add("run_validation", &T::run_validation, "Compute the loss on the validation set.");
  rows.add("val_interval_steps", &T::val_interval_steps,
           "Optimizer steps between two validations; 0 validates at the end of each epoch.");
  rows.add("val_fraction", &T::val_fraction,
           "Part of data.dataset_path kept for validation when data.val_dataset_path is not set.")
      .in({.min = 0, .max = 1, .min_open = true, .max_open = true});
  guide_only(rows);
  return rows.take();
}

std::vector<Field> optimization_fields() {
  using O = OptimizationConfig;
  Rows<O> rows("optimization", &Config::optimization);
  rows.add("use_amp", &O::use_amp, "Mixed precision by amp_dtype; false computes in float32.");
  rows.add("amp_dtype", &O::amp_dtype,
           "Precision of matrix products and activations; sums, weights, norms and losses stay "
           "float32. auto is bfloat16 where every rank's CPU multiplies it, float32 elsewhere.")
      .of({"auto", "float32", "bfloat16", "float16"});
  rows.add("gradient_accumulation_steps", &O::gradient_accumulation_steps,
           "Batches a rank adds up before an optimizer step; null means 1, or what "
           "training.global_batch_size needs.")
      .in(between(1, 1 << 24));
  rows.add("gradient_checkpointing", &O::gradient_checkpointing,
           "block stores a block's input alone and computes the rest again in the backward; never "
           "changes the numbers.")
      .of({"none", "block"})
      .reads("true", "block")
      .reads("false", "none");
  rows.add("loss_scale_init", &O::loss_scale_init, "float16: first loss scale, a power of two.")
      .in({.min = 0, .max = 0x1p100, .min_open = true});
  rows.add("loss_scale_growth_interval", &O::loss_scale_growth_interval,
           "float16: steps without overflow after which the scale doubles.")
      .in(between(1, count_max));
  rows.add("loss_scale_backoff", &O::loss_scale_backoff,
           "float16: factor of the scale after an overflow.")
      .in({.min = 0, .max = 1, .min_open = true, .max_open = true});
  rows.add("loss_scale_min", &O::loss_scale_min, "float16: least loss scale.")
      .in({.min = 0, .max = 0x1p100, .min_open = true});
  rows.guide("use_compile", Kind::boolean, "Graph compiler of the guide's.")
      .never_but({Value{}, false}, "kernels are compiled ahead; write use_compile: false")
      .note("kernels are compiled ahead");
  for (const char* name : {"compile_mode", "compile_dynamic"}) {
    rows.guide(name, Kind::text, "Belongs to use_compile.")
        .never_but({Value{}}, "kernels are compiled ahead; remove the field");
  }
  const std::string no_workers =
      "the data feed of each rank reads ahead by itself; remove the field";
  rows.guide("num_workers", Kind::integer, "Data loading processes.")
      .never_but({Value{}, std::int64_t{0}}, no_workers);
  rows.guide("persistent_workers", Kind::boolean, "Data loading processes outlive an epoch.")
      .never_but({Value{}, false}, no_workers);
  rows.guide("prefetch_factor", Kind::integer, "Batches that a loading process reads ahead.")
      .never_but({Value{}}, no_workers);
  rows.guide("pin_memory", Kind::boolean, "Page-locked host buffers.")
      .note("buffers are pinned where a device needs it, whatever this says");
  return rows.take();
}

}  // namespace llm
