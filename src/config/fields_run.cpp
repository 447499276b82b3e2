#include "src/config/rows.h"

namespace llm {
namespace {

const std::string no_hub =
    "data comes from local files; download it and write data.dataset_path: FILES";
const std::string no_dedup = "rows are not deduplicated here; deduplicate the files and remove it";

}  // namespace

std::vector<Field> data_fields() {
  using D = DataConfig;
  Rows<D> rows("data", &Config::data);
  rows.add("data_source", &D::data_source, "Where data comes from.")
      .of({"local"})
      .without("hf", no_hub)
      .without("dedup_local", "write data_source: local; rows are not deduplicated here")
      .without("dedup_hf", no_hub);
  rows.add("dataset_path", &D::dataset_path,
           "Files or globs (** any folders, {a,b} either), a list or one text with commas: text, "
           ".jsonl, or .bin token files.");
  rows.add("val_dataset_path", &D::val_dataset_path,
           "Files or globs of the validation set; null splits training.val_fraction off "
           "dataset_path.");
  rows.add("tokenizer_type", &D::tokenizer_type,
           "byte: one token a byte, 256 ids; hf: byte-level BPE as tokenizer_path says.")
      .of({"byte", "hf"})
      .without("simple", "write tokenizer_type: byte, or hf with a tokenizer.json");
  rows.add("tokenizer_path", &D::tokenizer_path,
           "The tokenizer.json of tokenizer_type: hf, or a folder that holds one.");
  rows.add("text_column", &D::text_column, "Field of a .jsonl line that holds its text.");
  rows.add("cache_dir", &D::cache_dir,
           "Folder of tokenized corpora, kept for the next start; null means "
           "$XDG_CACHE_HOME/llm-train or ~/.cache/llm-train.");
  rows.add("max_seq_len", &D::max_seq_len, "Tokens of one sample (T); at most model.max_seq_len.")
      .in(between(1, 1 << 24));
  rows.add("steps_per_epoch", &D::steps_per_epoch,
           "Optimizer steps called an epoch; stream_lm needs it, null is one pass over the data.")
      .in(between(1, count_max));
  rows.add(
      "packing", &D::packing,
      "--task sft: as many examples a sample as fit, one after the other; false is one, and the "
      "rest of the sample is not trained on.");
  rows.add("shuffle", &D::shuffle,
           "Samples come in an order drawn from training.seed; false reads in file order.");
  rows.add("shuffle_buffer", &D::shuffle_buffer, "Samples that stream_lm holds and draws from.")
      .in(between(1, 1 << 24));
  rows.guide("dataset_name", Kind::text, "Data set of the hub.").never_but({Value{}}, no_hub);
  rows.guide("dataset_config", Kind::text, "Part of a data set of the hub.")
      .never_but({Value{}}, no_hub);
  rows.guide("dataset_split", Kind::text, "Split of a data set of the hub.")
      .never_but({Value{}}, no_hub);
  rows.guide("skip_undecodable_rows", Kind::boolean, "Skip rows that are not text.")
      .note("text is read as bytes: every row decodes");
  rows.guide("seen_hashes_path", Kind::text, "File of hashes of known rows.")
      .never_but({Value{}}, no_dedup);
  rows.guide("write_seen_hashes", Kind::boolean, "Append to the file of known rows.")
      .never_but({Value{}, false}, no_dedup);
  rows.guide("hash_algo", Kind::text, "Hash of the known rows.").never_but({Value{}}, no_dedup);
  return rows.take();
}

std::vector<Field> checkpoint_fields() {
  using C = CheckpointConfig;
  Rows<C> rows("checkpoint", &Config::checkpoint);
  rows.add("checkpoint_dir", &C::checkpoint_dir,
           "Folder of checkpoints; null means checkpoints/ in logging.run_dir.");
  rows.add("state_dict_type", &C::state_dict_type,
           "full: rank 0 writes files that other tools read; sharded: each rank writes its part. "
           "Either is read under every layout.")
      .of({"full", "sharded"});
  rows.add(
      "save_interval_steps", &C::save_interval_steps,
      "Optimizer steps between two checkpoints, and one after the last; 0 saves none but after "
      "a stop by a signal. The final weights are written in any case.");
  rows.add("resume_from_checkpoint", &C::resume_from_checkpoint,
           "Checkpoint to go on from: its folder, latest (the newest of checkpoint_dir), or auto "
           "(the newest that is whole; none at all starts afresh); null starts afresh.");
  rows.add("keep_last_n", &C::keep_last_n, "Checkpoints that are kept: the newest ones.")
      .in(between(1, count_max));
  rows.add("save_best", &C::save_best,
           "With save_interval_steps: save after a validation whose loss is the least so far, and "
           "keep that checkpoint too.");
  rows.guide("save_interval", Kind::integer, "Epochs between two checkpoints of the guide's.")
      .never_but({}, "write checkpoint.save_interval_steps, in optimizer steps");
  return rows.take();
}

std::vector<Field> logging_fields() {
  using L = LoggingConfig;
  Rows<L> rows("logging", &Config::logging);
  rows.add("run_dir", &L::run_dir,
           "Folder of the run's files; null means a new one for each start (for each job under "
           "SLURM).");
  rows.add("progress", &L::progress,
           "Progress on the terminal; auto is a bar on a terminal and lines elsewhere.")
      .of({"auto", "line", "bar", "off"});
  rows.add("log_interval", &L::log_interval, "Optimizer steps between two progress lines.")
      .in(between(1, count_max));
  rows.add("tensorboard", &L::tensorboard,
           "Write the numbers of metrics.jsonl as a TensorBoard event file beside it too.");
  rows.guide("log_level", Kind::text, "Verbosity of the guide's logger.")
      .note("logging.progress decides what is printed");
  rows.guide("log_dir", Kind::text, "Folder of the guide's logs.")
      .never_but({}, "write logging.run_dir: FOLDER");
  rows.guide("save_logs", Kind::boolean, "Write logs to files.")
      .never_but({Value{}, true}, "metrics.jsonl is always written; write save_logs: true")
      .note("metrics.jsonl in logging.run_dir is always written");
  return rows.take();
}

std::vector<Field> numerics_fields() {
  using N = NumericsConfig;
  Rows<N> rows("numerics", &Config::numerics);
  rows.add("accumulation", &N::accumulation,
           "How microbatch gradients are added: tree gives the same bits at every power-of-two "
           "number of data-parallel ranks, sequential needs one buffer.")
      .of({"tree", "sequential"});
  return rows.take();
}

}  // namespace llm
