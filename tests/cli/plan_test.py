"""What llm-train says without training: --help, --version, --explain, and --plan of every shipped configuration."""
import os
import re

import program

CONFIGS = sorted((program.ROOT / "configs").glob("*.yaml"))
MIB = r"([0-9]+\.[0-9]{2}) MiB"


class Texts(program.ProgramTest):
    def said(self, *arguments, **launch):
        done = self.llm_train(*arguments, **launch)
        self.assertEqual((done.code, done.err), (0, ""), done)
        return done.out

    def test_help_names_every_option_launcher_and_exit_code(self):
        text = self.said("--help")
        for part in ["--config-path", "--task", "stream_lm", "--trace", "--plan", "--ranks", "--ranks-per-node",
                     "--explain", "--version", "section.field=value", "mpirun -n", "srun --mpi=pmix", "LLM_<SECTION>"]:
            self.assertIn(part, text)
        for code in ["64", "65", "70", "74", "75", "78"]:
            self.assertRegex(text, rf"\b{code}\b")
        self.assertEqual([line for line in text.splitlines() if len(line) > 120], [])

    def test_the_version_is_the_projects(self):
        project = (program.ROOT / "meson.build").read_text()
        version = re.search(r"version: '([^']+)'", project).group(1)
        self.assertEqual(self.said("--version"), f"llm-train {version}\n")

    def test_all_fields_a_section_and_one_field_are_explained(self):
        everything, section, field = self.said("--explain"), self.said("--explain", "training"), \
            self.said("--explain", "training.lr")
        self.assertIn(section, everything)
        self.assertIn(field, section)
        for part in ["training.lr\n", "type: number", "default: 0.001", "also: learning_rate", "LLM_TRAINING__LR"]:
            self.assertIn(part, field)
        for name in re.findall(r"^\| `(\w+)`", (program.ROOT / "configs/README.md").read_text(), re.M):
            self.assertRegex(everything, rf"(?m)^\w+\.{name}$")

    def test_three_ranks_say_the_version_once(self):
        self.assertEqual(self.said("--version", ranks=3).count("llm-train"), 1)


class Plans(program.ProgramTest):
    def setUp(self):
        super().setUp()
        os.symlink(program.ROOT / "configs", self.folder / "configs")
        # What the shipped configurations name, as small as planning allows: their sizes are all that is looked at.
        self.text("README.md", 400000)
        self.write("src/a/main.cpp", "int main() {}\n")
        self.write("tests/a.py", "pass\n")
        for name in ["train-0", "val-0"]:
            self.write(f"data/{name}.bin", bytes(2 * 200000))

    def plan(self, *arguments, env=None):
        environment = {"PATH": "/nowhere"} | (env or {})  # a login node has no mpirun
        done = self.llm_train(*arguments, "--plan", env=environment)
        self.assertEqual((done.code, done.err), (0, ""), done)
        return done.out

    def test_every_shipped_configuration_is_planned_for_every_number_of_ranks_it_allows(self):
        self.assertGreaterEqual(len(CONFIGS), 8)
        for config in CONFIGS:
            for ranks in (1, 2, 4, 8):
                with self.subTest(config=config.name, ranks=ranks):
                    yaml = config.read_text()
                    pp_size, tp = (int((re.search(rf"^  {name}: (\d+)", yaml, re.M) or [0, default])[1])
                                   for name, default in (("pp_size", 0), ("tp_size", 1)))
                    if ranks % ((pp_size or 1) * tp):
                        continue
                    pp = pp_size or (ranks if "parallel_strategy: pp" in yaml else 1)
                    text = self.plan("--config-path", config, "--ranks", ranks)
                    self.assertIn(f"grid     [dp {ranks // pp // tp}][pp {pp}][tp {tp}]: {ranks} rank", text)
                    for title in ["batch ", "stage ", "model ", "layers\n", "buckets ", "bytes per rank\n",
                                  "messages per step\n"]:
                        self.assertIn(title, text)

    def test_the_tables_add_up(self):
        text = self.plan("--config-path", "configs/gpt2-124m.yaml", "--ranks", "4", "--ranks-per-node", "1")
        n = int(re.search(r"model +(\d+) parameters", text).group(1))
        self.assertEqual(n, 124_439_808, "GPT-2 small's parameters")
        units = text.split("layers\n")[1].split("buckets ")[0].splitlines()[1:]
        counts = [int(re.search(r" (\d+) +[0-9.]+ MiB$", line).group(1)) for line in units]
        self.assertEqual((len(counts), sum(counts)), (14, n))
        memory = text.split("bytes per rank\n")[1].split("zero_stage ")[0].splitlines()
        rows = [(line[:50].strip(), float(re.search(MIB, line).group(1))) for line in memory]
        self.assertEqual(rows[-1][0], "sum")
        self.assertAlmostEqual(sum(size for _, size in rows[:-1]), rows[-1][1], delta=0.01 * len(rows))
        sharing = text.split("zero_stage ")[1].splitlines()[1:5]
        sums = [float(re.findall(MIB, line)[-1]) for line in sharing]
        self.assertAlmostEqual(sums[0], rows[-1][1], delta=0.01)
        self.assertTrue(sums[0] > sums[1] == sums[2], sharing)
        blocks = self.plan("--config-path", "configs/gpt2-124m.yaml", "--ranks", "4", "--ranks-per-node", "1",
                           "distributed.fsdp_auto_wrap_min_params=7000000", "distributed.zero_stage=3")
        row = blocks.split("zero_stage  ")[1].splitlines()[4]
        self.assertIn("this one", row)
        self.assertLess(float(re.findall(MIB, row)[-1]), sums[2])
        self.assertIn("this one", sharing[0])
        for part in ["parameters", "accumulation tree", "AdamW moments", "activations", "receives"]:
            self.assertTrue(any(part in name for name, _ in rows), part)

    def test_bytes_on_the_wire_are_those_of_a_reduce_scatter_and_an_all_gather(self):
        for ranks in (1, 2, 3, 4, 8):
            text = self.plan(*program.TINY, "data.dataset_path=README.md", "--ranks", ranks, "--ranks-per-node", 1)
            parameters = int(re.search(r"(\d+) parameters", text).group(1))
            sent = [float(x) for x in re.findall(rf"tensor messages, {MIB}", text)]
            expected = 2 * (ranks - 1) / ranks * 4 * parameters / (1 << 20)
            self.assertEqual(len(sent), 1 if ranks == 1 else 2)
            for mib in sent:
                self.assertAlmostEqual(mib, expected, delta=0.03 * expected + 0.005, msg=f"{ranks} ranks")

    def test_ranks_of_one_node_send_no_gradients(self):
        text = self.plan(*program.TINY, "data.dataset_path=README.md", "--ranks", 4)
        self.assertIn("added up where they lie", text)
        self.assertEqual(re.findall(rf"tensor messages, {MIB}", text), ["0.00", "0.00"])

    def test_smaller_buckets_are_more_messages_with_as_many_bytes(self):
        def traffic(bucket_bytes):
            text = self.plan(*program.TINY, "data.dataset_path=README.md", "--ranks", "2",
                             "--ranks-per-node", "1", f"distributed.bucket_bytes={bucket_bytes}")
            return re.search(rf"sends (\d+) tensor messages, {MIB}", text).groups()
        (few, bytes_of_few), (many, bytes_of_many) = traffic(1 << 30), traffic(8192)
        self.assertEqual(bytes_of_few, bytes_of_many)
        self.assertEqual(int(few), 2)
        self.assertGreater(int(many), 4)

    def test_accumulation_follows_from_the_global_batch(self):
        for ranks, steps in ((1, "8 accumulation steps"), (2, "4 accumulation steps"), (8, "1 accumulation step")):
            text = self.plan("--config-path", "configs/ddp.yaml", "--ranks", ranks)
            self.assertIn(f"global 64 samples = (8) x {steps} x dp {ranks};", text)

    def test_ranks_are_spread_over_nodes(self):
        base = ["--config-path", "configs/ddp.yaml"]
        self.assertIn("8 ranks on 2 nodes of 4\n", self.plan(*base, "--ranks", "8", "--ranks-per-node", "4"))
        self.assertIn("8 ranks on 1 node of 8\n", self.plan(*base, "--ranks", "8"))

    def test_the_number_of_steps_is_said(self):
        text = self.plan(*program.TINY, "data.dataset_path=README.md", "training.max_steps=0", "training.epochs=3",
                         "training.run_validation=false")
        # 400,000 bytes are 12,499 samples of 32 tokens and a label; two of them are a step.
        self.assertIn(f"steps    {3 * 12499 // 2}\n", text)

    def test_a_plan_reads_no_data_and_leaves_nothing(self):
        os.truncate(self.folder / "README.md", 1 << 40)  # a terabyte of nothing: reading it would take hours
        before = sorted(p for p in self.folder.rglob("*"))
        self.plan("--config-path", "configs/ddp.yaml")
        self.assertEqual(sorted(p for p in self.folder.rglob("*")), before)

    def test_a_batch_shell_of_four_tasks_can_plan(self):
        self.plan("--config-path", "configs/ddp.yaml", "--ranks", "4", env={"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"})

    def test_a_number_of_ranks_that_does_not_fit_is_refused(self):
        done = self.llm_train("--config-path", "configs/ddp.yaml", "--plan", "--ranks", "3")
        self.assertEqual((done.code, len(done.causes())), (78, 1), done)
        for part in ["training.global_batch_size", "64", "3 data-parallel ranks"]:
            self.assertIn(part, done.causes()[0])


if __name__ == "__main__":
    program.main()
