#include "src/config/rows.h"

namespace llm {
namespace {

void launch_fields(Rows<DistributedConfig>& rows) {
  using D = DistributedConfig;
  const std::string no_master = "MPI needs neither master_addr nor master_port";
  rows.add("master_addr", &D::master_addr, "First node's address; recorded only.").note(no_master);
  rows.add("master_port", &D::master_port, "First node's port; recorded only.").note(no_master);
  rows.add("num_nodes", &D::num_nodes,
           "Nodes of the run, for the printed mpirun line; what MPI sees counts.")
      .in(between(1, 1 << 20));
  rows.add("node_rank", &D::node_rank, "This node's index; the launcher's own index counts.")
      .in(between(0, 1 << 20));
  rows.add("gpus_per_node", &D::gpus_per_node,
           "Ranks on each node, for the printed mpirun line; null means what the launcher started.")
      .in(between(1, 1 << 16));
  rows.add("backend", &D::backend,
           "Who carries messages; null means nccl on devices and mpi otherwise.")
      .of({"mpi", "nccl"})
      .reads("gloo", "mpi", "gloo means mpi");
  rows.add("device", &D::device, "Where ranks compute; auto means cuda if there is one, else cpu.")
      .of({"auto", "cpu", "cuda"})
      .without("gpu", "write device: cuda");
  rows.add("collectives", &D::collectives,
           "Who adds up gradients over data-parallel ranks: plan is this program, in one order "
           "whatever the layout; nccl is NCCL's own collectives, on devices with backend nccl: the "
           "same bits for the same layout alone.")
      .of({"plan", "nccl"});
  rows.add("threads_per_rank", &D::threads_per_rank,
           "Threads that compute on each rank; never changes the numbers. They run on the cores "
           "that "
           "the launcher gives the rank: see mpirun's --map-by slot:PE=N and --bind-to none.")
      .in(between(1, 256));
  rows.add("collective_timeout_seconds", &D::collective_timeout_seconds,
           "A run in which nothing moves for so long prints who waits for whom and exits with 70.")
      .in({.min = 0, .max = 1e9, .min_open = true});
}

void pipeline_fields(Rows<DistributedConfig>& rows) {
  using D = DistributedConfig;
  rows.add("pp_n_microbatches", &D::pp_n_microbatches,
           "Microbatches that training.batch_size is cut into, at every pipeline size.")
      .in(between(1, 1 << 24));
  rows.add(
          "pp_schedule", &D::pp_schedule,
          "Order of each pipeline rank's forwards and backwards; never changes the numbers. "
          "1f1b_pairs runs a forward beside a backward, so that one computes while the other waits "
          "for tensor-parallel ranks or experts. "
          "file:PATH is a text file with one line a rank, as F0 F1|B0 B1.")
      .of({"gpipe", "1f1b", "1f1b_pairs", "interleaved", "zero_bubble", "zero_bubble_v"})
      .or_starting_with("file:");
  rows.add("pp_virtual_stages", &D::pp_virtual_stages,
           "Model chunks on each pipeline rank: at least 2 under interleaved; zero_bubble_v always "
           "has 2.")
      .in(between(1, 4096));
  rows.add("pp_split", &D::pp_split,
           "Blocks of each stage in model order, as \"3,4,4,1\"; null balances stages by their "
           "floating-point operations.");
}

void shard_fields(Rows<DistributedConfig>& rows) {
  using D = DistributedConfig;
  rows.add("zero_stage", &D::zero_stage,
           "What data-parallel ranks share out: 1 optimizer state, 2 gradients too once they are "
           "summed, 3 parameters too; null means 1 under zero, 3 under fsdp, 0 otherwise. Never "
           "changes the numbers.")
      .in(between(0, 3));
  rows.add("bucket_bytes", &D::bucket_bytes,
           "Gradients are reduced in buckets of about so many bytes; never changes the numbers.")
      .in(between(4, 1LL << 40));
  rows.add("fsdp_mixed_precision", &D::fsdp_mixed_precision,
           "Precision of compute and of gathered parameters under parallel_strategy fsdp, in place "
           "of "
           "optimization.amp_dtype. Masters, moments, gradient sums and their messages stay "
           "float32.")
      .of({"fp32", "bf16", "fp16"});
  rows.add("fsdp_auto_wrap_min_params", &D::fsdp_auto_wrap_min_params,
           "Under zero_stage 3 a module (embedding, block, head) of at least so many parameters is "
           "a "
           "unit: gathered and given back as one. The others together are one more; 0 makes one "
           "unit "
           "of all. More mean fewer, bigger units, and more memory. Never changes the numbers.")
      .in(between(0, 1LL << 40));
  rows.add("fsdp_cpu_offload", &D::fsdp_cpu_offload,
           "Under zero_stage 3 on devices: what a rank owns of parameters and moments lies in host "
           "memory and is updated by its CPU; a unit comes to the device while it is used. On CPUs "
           "it is there already, and nothing changes.");
  rows.add("fsdp_prefetch_units", &D::fsdp_prefetch_units,
           "Units that are gathered ahead of the one in use; each takes its memory. Never changes "
           "the "
           "numbers.")
      .in(between(0, 1 << 16));
  rows.add(
      "fsdp_reshard_after_forward", &D::fsdp_reshard_after_forward,
      "A unit is given back after its use and gathered again for the next one; false keeps it to "
      "its last use in the step: fewer messages, more memory. Never changes the numbers.");
  rows.add(
      "cuda_graphs", &D::cuda_graphs,
      "On devices, runs of ops of a forward or backward that come again with the same memory go "
      "to the device as one CUDA graph. Never changes the numbers. On CPUs nothing changes.");
}

}  // namespace

std::vector<Field> distributed_fields() {
  using D = DistributedConfig;
  Rows<D> rows("distributed", &Config::distributed);
  rows.add("parallel_strategy", &D::parallel_strategy,
           "How ranks share the work; 3d is data, pipeline and tensor parallel by their sizes.")
      .of({"ddp", "fsdp", "zero", "tp", "pp", "3d"});
  rows.add("tp_size", &D::tp_size,
           "Tensor-parallel ranks; 0 means all ranks under tp and 1 otherwise.")
      .in(between(0, 1 << 20));
  rows.add("pp_size", &D::pp_size, "Pipeline ranks; 0 means all ranks under pp and 1 otherwise.")
      .in(between(0, 1 << 20));
  rows.add("dp_size", &D::dp_size,
           "Data-parallel ranks, to be checked; 0 means ranks / (tp_size x pp_size).")
      .in(between(0, 1 << 20));
  launch_fields(rows);
  shard_fields(rows);
  pipeline_fields(rows);
  rows.add("expert_parallel", &D::expert_parallel,
           "Which ranks have a part of a mixture's experts each: tensor-parallel ranks always, and "
           "with dp the data-parallel ones too, which send each other the rows of their tokens.")
      .of({"none", "dp"});
  rows.add("sequence_parallel", &D::sequence_parallel,
           "Between a layer's products each tensor-parallel rank has a part of the tokens: norms, "
           "dropout and what is kept of them; sums stay in pieces and are gathered where needed.");
  return rows.take();
}

}  // namespace llm
