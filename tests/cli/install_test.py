"""What meson install puts where, and that a program of one's own builds against it: actors/README.md's."""
import re
import shutil
import subprocess
import sys
import unittest

import program

BUILD, COMPILER = sys.argv[3:5]


class Installed(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.run_tool("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", str(self.folder / "to"))
        (self.binary,) = (self.folder / "to").rglob("bin/llm-train")
        self.prefix = self.binary.parent.parent

    def run_tool(self, *command, env=None):
        done = subprocess.run(command, cwd=self.folder, env=self.environment | (env or {}), capture_output=True,
                              text=True, timeout=150)
        self.assertEqual(done.returncode, 0, done)
        return done.stdout

    def test_the_installed_program_says_its_version(self):
        self.assertRegex(self.run_tool(str(self.binary), "--version"), r"^llm-train [0-9.]+\n$")

    @unittest.skipUnless(shutil.which("pkg-config"), "pkg-config is not here")
    def test_the_readmes_program_of_actors_builds_and_runs_on_the_installed_runtime(self):
        (package,) = self.prefix.rglob("llm-runtime.pc")
        # As if the prefix itself had been installed to.
        package.write_text(re.sub(r"(?m)^prefix=.*$", f"prefix={self.prefix}", package.read_text()))
        flags = self.run_tool("pkg-config", "--cflags", "--libs", "llm-runtime",
                              env={"PKG_CONFIG_PATH": str(package.parent)}).split()
        source = re.search(r"```cpp\n(.*?)```", (program.ROOT / "actors/README.md").read_text(), re.S).group(1)
        # The same flags as the build: a sanitizer's runtime has to be linked too.
        self.write("darts.cpp", source)
        self.run_tool(*COMPILER.split(), "darts.cpp", "-o", "darts", *flags)
        text = self.run_tool(*program.MPIRUN, "-n", "3", "./darts")
        self.assertIn("3.14", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
