"""Wrong configurations, launches and command lines: the exit code, one line that names the field, the numbers and the
way out, within two seconds where one process is started."""
import program

GOOD = "model:\n  vocab_size: 256\n  hidden_size: 32\n  num_heads: 2\n"

# name: (exit code, what the line holds, YAML text or None, further arguments)
CONFIGURATIONS = {
    "an unknown key is named with its place and the nearest one": (
        78, ["file.yaml:5:3", "model.hiden_size", "did you mean hidden_size"], GOOD + "  hiden_size: 64\n", []),
    "a key of another section is sent there": (
        78, ["file.yaml:2:3", "model.batch_size", "training.batch_size"], "model:\n  batch_size: 2\n", []),
    "an unknown section is refused": (78, ["file.yaml:1:1", "modle", "model"], "modle:\n  vocab_size: 256\n", []),
    "a key set twice names both places": (
        78, ["file.yaml:5:3", "model.vocab_size", "file.yaml:2:3"], GOOD + "  vocab_size: 512\n", []),
    "a word for a number is refused": (
        78, ["file.yaml:2:7", "training.lr", "fast"], "training:\n  lr: fast\n", []),
    "a fraction for a count is refused": (
        78, ["file.yaml:2:15", "model.num_layers", "2.5"], "model:\n  num_layers: 2.5\n", []),
    "a quoted number is not a number": (78, ["model.num_layers", "2"], "model:\n  num_layers: \"2\"\n", []),
    "a number out of range names the range": (
        78, ["model.dropout", "1.5", "at least 0, below 1"], "model:\n  dropout: 1.5\n", []),
    "a count of zero is refused": (78, ["training.batch_size", "0", "1 to"], None, ["training.batch_size=0"]),
    "a choice is named with the nearest one": (
        78, ["training.scheduler_type", "cosin", "cosine"], None, ["training.scheduler_type=cosin"]),
    "heads that do not divide the width name both numbers": (
        78, ["model.num_heads", "5", "model.hidden_size 32", "4 or 8"], GOOD, ["model.num_heads=5"]),
    "two kinds of positions contradict each other": (
        78, ["model.pos_encoding_learned", "model.use_rope"], None,
        ["model.use_rope=true", "model.pos_encoding_learned=true"]),
    "a sample longer than the model's sequence names both": (
        78, ["data.max_seq_len", "64", "model.max_seq_len 32"], None, ["data.max_seq_len=64", "model.max_seq_len=32"]),
    "a warm-up longer than the run names both": (
        78, ["training.warmup_steps", "9", "training.max_steps 6"], None, ["training.warmup_steps=9"]),
    "a global batch that cannot be cut names all three numbers": (
        78, ["training.global_batch_size", "7", "2 x 1", "use 8"], None, ["training.global_batch_size=7"]),
    "an accumulation that contradicts the global batch is refused": (
        78, ["training.global_batch_size", "8", "4 accumulation steps", "gradient_accumulation_steps is 3"], None,
        ["training.global_batch_size=8", "optimization.gradient_accumulation_steps=3"]),
    "a guide's field without counterpart says what to write": (
        78, ["optimization.use_compile", "use_compile: false"], "optimization:\n  use_compile: true\n", []),
    "what comes later is refused": (
        78, ["distributed.zero_stage", "4", "0 to 3"], None, ["distributed.zero_stage=4"]),
    "a schedule's file that is not there is named": (
        78, ["distributed.pp_schedule", "none.txt", "No such file"], None,
        ["distributed.pp_schedule=file:none.txt"]),
    "more stages than blocks name both": (
        78, ["distributed.pp_virtual_stages", "4 chunks", "model.num_layers is "], None,
        ["distributed.pp_schedule=interleaved", "distributed.pp_virtual_stages=4"]),
    "nccl without a device names the line to change": (
        78, ["distributed.backend", "nccl", "0 devices", "backend: mpi"], None, ["distributed.backend=nccl"]),
    "NCCL's own collectives without a device name the line to change": (
        78, ["distributed.collectives", "nccl", "CPUs", "collectives: plan"], None, ["distributed.collectives=nccl"]),
    "a vocabulary below the tokenizer's names both": (
        78, ["model.vocab_size", "100", "256"], None, ["model.vocab_size=100"]),
    "two documents are refused": (78, ["file.yaml:5:1", "second document"], GOOD + "---\nmodel: {}\n", []),
    "a file that is not YAML names the place": (78, ["file.yaml:3:1", "not YAML"], "model:\n  vocab_size: [1\n", []),
    "more than one MiB is refused": (78, ["file.yaml", "1048576"], GOOD + "#" * (1 << 20), []),
    "two data-parallel ranks in a run of one name both": (
        78, ["distributed.dp_size", "2", "1 rank"], None, ["distributed.dp_size=2"]),
    "a data set of one sample too little names both numbers": (
        65, ["20 tokens", "data.max_seq_len 32", "33"], None, ["data.dataset_path=short.txt"]),
    "a glob that matches nothing is named": (
        65, ["data.dataset_path", "none/*.txt"], None, ["data.dataset_path=none/*.txt"]),
    "an empty data set is refused": (65, ["empty.txt"], None, ["data.dataset_path=empty.txt"]),
    "data that is not set says what to write": (
        78, ["data.dataset_path", "not set", "data.dataset_path="], None, ["data.dataset_path=null"]),
    "token files and text do not mix": (
        65, ["data.dataset_path", ".bin"], None, ["data.dataset_path=text.txt,tokens.bin"]),
    "a line that is not JSON is named": (65, ["lines.jsonl:2", "JSON"], None, ["data.dataset_path=lines.jsonl"]),
    "a folder that holds a run is left alone": (
        78, ["logging.run_dir", "old", "metrics.jsonl", "another folder"], None, ["logging.run_dir=old"]),
    "a run folder that is a file is a file error": (74, ["text.txt"], None, ["logging.run_dir=text.txt"]),
    "a stream without an epoch's length says what to write": (
        78, ["data.steps_per_epoch", "stream_lm"], None, ["--task", "stream_lm"]),
    "a task that is not there yet is refused": (78, ["--task dpo", "lm, stream_lm and sft"], None, ["--task", "dpo"]),
    "an unknown task names the nearest one": (78, ["--task", "strem_lm", "stream_lm"], None, ["--task", "strem_lm"]),
}

# name: (exit code, what the line holds, arguments)
COMMAND_LINES = {
    "an unknown option is refused": (64, ["--frobnicate", "--help"], ["--frobnicate"]),
    "a word that is no override is refused": (64, ["training.lr", "section.field=value"], ["training.lr"]),
    "--ranks without --plan is refused": (64, ["--ranks", "--plan"], ["--ranks", "2"]),
    "a number of ranks must be one": (64, ["--ranks", "two"], ["--plan", "--ranks", "two"]),
    "no ranks cannot be planned": (64, ["--ranks", "0"], ["--plan", "--ranks", "0"]),
    "an override of an unknown field names the nearest one": (78, ["training.lrr", "lr"], ["training.lrr=1"]),
    "an override without a section is refused": (78, ["lr", "section.field=value"], ["lr=1"]),
    "a missing file is named": (78, ["none.yaml", "No such file", "--config-path"], ["--config-path", "none.yaml"]),
    "a folder as file is named": (78, ["old", "folder"], ["--config-path", "old"]),
    "a field to explain must exist": (64, ["training.lrr", "lr"], ["--explain", "training.lrr"]),
}


class Refusals(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.text()
        self.write("short.txt", "twenty bytes of text")
        self.write("empty.txt", "")
        self.write("tokens.bin", bytes(200))
        self.write("lines.jsonl", '{"text": "fine"}\n{"text": \n')
        self.write("old/metrics.jsonl", "{}\n")

    def check(self, code, holds, arguments, env=None, ranks=0, seconds=2):
        for _ in range(3):  # a busy machine may take its time once
            done = self.llm_train(*arguments, env=env, ranks=ranks)
            if done.seconds <= seconds:
                break
        self.assertLessEqual(done.seconds, seconds, done)
        self.assertEqual(done.code, code, done)
        self.assertEqual(len(done.causes()), 1, done)
        for part in holds:
            self.assertIn(part, done.causes()[0])
        if not ranks:
            self.assertEqual(done.err, done.causes()[0] + "\n", "nothing but the one line")
        self.assertFalse((self.folder / "run/metrics.jsonl").exists(), "a refused run has no metrics")

    def configuration(self, yaml, arguments):
        path = self.write("file.yaml", yaml) if yaml else None
        base = program.TINY + ["data.dataset_path=text.txt", "logging.run_dir=run"] if not yaml else []
        return (["--config-path", path.name] if path else []) + base + arguments

    def test_a_variable_of_an_unknown_field_is_refused(self):
        self.check(78, ["LLM_TRAINING__LRR", "training.lrr", "lr"], ["data.dataset_path=text.txt"],
                   env={"LLM_TRAINING__LRR": "1"})

    def test_a_variable_with_a_wrong_value_is_refused(self):
        self.check(78, ["LLM_TRAINING__LR", "training.lr", "fast"], ["data.dataset_path=text.txt"],
                   env={"LLM_TRAINING__LR": "fast"})

    def test_other_variables_of_the_prefix_are_left_alone(self):
        self.train("run", env={"LLM_HOME": "somewhere", "LLM_API_KEY": "1"})

    def test_heads_that_do_not_divide_are_refused_on_two_ranks(self):
        self.check(78, ["distributed.tp_size", "2 does not divide model.num_heads 1", "divisor"],
                   self.configuration(None, ["distributed.parallel_strategy=tp", "model.num_heads=1"]), ranks=2, seconds=10)

    def test_an_unknown_field_is_one_line_on_three_ranks(self):
        self.check(78, ["training.lrr"], self.configuration(None, ["training.lrr=1"]), ranks=3, seconds=10)

    def test_an_unknown_option_is_one_line_on_three_ranks(self):
        self.check(64, ["--frobnicate"], ["--frobnicate"], ranks=3, seconds=10)

    def test_ranks_that_do_not_speak_leave_after_the_one_that_does(self):
        """Or the launcher ends it before it has said why."""
        silent = self.start("--frobnicate", env={"OMPI_COMM_WORLD_RANK": "1"})
        speaks = self.llm_train("--frobnicate", env={"OMPI_COMM_WORLD_RANK": "0"})
        self.assertEqual((speaks.code, len(speaks.causes())), (64, 1), speaks)
        self.assertIsNone(silent.poll(), "the other one is still there")
        done = self.finish(silent)
        self.assertEqual((done.code, len(done.causes())), (64, 1), "what only it found it says in the end")

    def test_a_process_alone_in_a_job_of_four_is_refused(self):
        self.check(78, ["Slurm says 4 ranks", "sees 1", "srun --mpi=pmix"], self.configuration(None, []),
                   env={"SLURM_NTASKS": "4"})

    def test_gpus_per_node_alone_prints_the_line_that_starts_them(self):
        arguments = self.configuration(None, ["distributed.gpus_per_node=4", "distributed.num_nodes=2"])
        line = "mpirun -n 8 --map-by ppr:4:node " + " ".join([str(program.PROGRAM), *arguments])
        self.check(78, ["distributed.gpus_per_node", "4", "8 ranks", line], arguments)


def add(name, check):
    setattr(Refusals, "test_" + "".join(c if c.isalnum() else "_" for c in name), check)


for name, (code, holds, yaml, arguments) in CONFIGURATIONS.items():
    add(name, lambda self, c=code, h=holds, y=yaml, a=arguments: self.check(c, h, self.configuration(y, a)))
for name, (code, holds, arguments) in COMMAND_LINES.items():
    add(name, lambda self, c=code, h=holds, a=arguments: self.check(c, h, a))

if __name__ == "__main__":
    program.main()
