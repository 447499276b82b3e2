"""The commands of docs/distributed.md run as they are printed, and what the page says of the program is so."""
import os
import re
import subprocess

import program

PAGE = (program.ROOT / "docs/distributed.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
# The page's configurations, as small as a test wants them.
SMALL = {"LLM_MODEL__HIDDEN_SIZE": "32", "LLM_MODEL__NUM_LAYERS": "1", "LLM_TRAINING__MAX_STEPS": "2",
         "LLM_TRAINING__WARMUP_STEPS": "1", "LLM_TRAINING__BATCH_SIZE": "2", "LLM_TRAINING__GLOBAL_BATCH_SIZE": "16",
         "LLM_DATA__DATASET_PATH": "*.md"}


class Page(program.ProgramTest):
    def setUp(self):
        super().setUp()
        for name in ("configs", "docs", "tests", "README.md", "STYLE.md"):
            os.symlink(program.ROOT / name, self.folder / name)
        self.write("src/a/main.cpp", "int main() {}\n")
        (self.folder / "build").mkdir()
        for name in ("llm-train", "llm-tokenize", "llm-trace"):
            os.symlink(program.PROGRAM.parent / name, self.folder / "build" / name)

    def run_block(self, block):
        small = {} if "gpt2-124m" in block else SMALL
        return subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                              env=self.environment | small | {"OMPI_MCA_hwloc_base_binding_policy": "none"})

    def test_the_page_holds_commands_that_run_and_few_that_do_not(self):
        self.assertGreaterEqual(len(BLOCKS), 8)
        self.assertLessEqual(PAGE.count("```sh norun"), 2)
        self.assertEqual(PAGE.count("\n```sh"), len(BLOCKS) + PAGE.count("```sh norun"))

    def test_links_to_files_of_the_project_lead_somewhere(self):
        for name in re.findall(r"`((?:\w+/)*[\w.-]+\.(?:md|yaml))`", PAGE):
            if name not in ("config.yaml",):
                self.assertTrue((program.ROOT / name).exists(), name)

    def test_every_field_that_is_named_exists(self):
        fields = self.llm_train("--explain").out
        sections = set(re.findall(r"(?m)^(\w+)\.\w+$", fields))
        for section, name in re.findall(r"`(\w+)\.(\w+)(?:=[^`]*|: [^`]*)?`", PAGE):
            if section in sections and name != "safetensors":
                self.assertTrue(re.search(rf"(?m)^{section}\.{name}$", fields), f"{section}.{name}")

    def test_every_message_of_the_troubleshooting_table_is_the_programs_or_the_launchers(self):
        table = PAGE.split("## Troubleshooting")[1].split("## Coming")[0]
        sources = "".join(path.read_text() for folder in ("src", "actors") for path in
                          (program.ROOT / folder).rglob("*.cpp"))
        text = re.sub(r'"\s*\n\s*(?:fmt::format\()?"', "", sources)  # literals that go on in the next line
        for message in re.findall(r"(?m)^\| `([^`]+)`", table):
            if message.startswith(("There are not", "mpirun has", "exited on", "Slurm says")):
                continue
            for piece in re.split(r"\.\.\.|\b[NM0-9]+\b|mpirun|: |; ", message):
                self.assertTrue(piece.strip() in text, f"{message}: '{piece.strip()}'")


def add(number, block):
    def check(self):
        done = self.run_block(block)
        self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout}\n{done.stderr}")
        errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        self.assertEqual(len(errors), 1 if "gpus_per_node" in block else 0, done.stderr)
        if "kill -USR1" in block:
            self.assertIn("exit code 75", done.stdout)
            self.assertIn("stopped by a signal after", done.stdout)
    setattr(Page, f"test_block_{number}", check)


for number, block in enumerate(BLOCKS, 1):
    add(number, block)

if __name__ == "__main__":
    program.main()
