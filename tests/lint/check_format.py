"""Every source is formatted as .clang-format says, by clang-format 19 (other versions format differently)."""
import shutil
import subprocess
import sys

import tree


def tool():
    return shutil.which("clang-format-19")


def problems(root):
    files = [str(p) for p in tree.sources(root)]
    if files:
        run = subprocess.run([tool(), "--dry-run", "-Werror", "-ferror-limit=1", *files], capture_output=True,
                             text=True)
        yield from sorted({line.replace(f"{root}/", "").split(": error")[0] + ": clang-format-19 -i would change it"
                           for line in run.stderr.splitlines() if "error:" in line})


STYLE = {".clang-format": (tree.ROOT / ".clang-format").read_text()}
CASES = [
    ({**STYLE, "src/a.cpp": "int f() {\n  return 1;\n}\n"}, None),
    ({**STYLE, "src/a.cpp": "int f() {\nreturn   1; }\n"}, "src/a.cpp:"),
]

if __name__ == "__main__":
    if not tool():
        print("format: clang-format-19 is not here")
        sys.exit(tree.SKIPPED)
    if "--self-test" in sys.argv:
        tree.self_test(problems, CASES)
    tree.finish("format", list(problems(tree.ROOT)))
