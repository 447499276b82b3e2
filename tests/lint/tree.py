"""What the lint scripts share: which files there are, C++ without its comments and strings, and how a script
reports and tests itself. Only the standard library, so that any python3 runs them."""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["src", "actors", "schedules", "tensor", "tests"]
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
SKIPPED = 77  # what meson takes for "skipped"


def sources(root=ROOT):
    for folder in FOLDERS:
        yield from (p for p in sorted((root / folder).rglob("*")) if p.suffix in SOURCES)


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)


def code_only(text):
    """C++ with comments and the insides of literals blanked: every offset and line number stays."""
    def blank(match):
        found = match.group(0)
        inside = re.sub(r"[^\n]", " ", found)
        return inside if found[0] == "/" or len(found) < 2 else '"' + inside[1:-1] + '"'
    return TOKEN.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def finish(name, found):
    print("\n".join(found) or f"{name}: ok")
    sys.exit(bool(found))


def self_test(problems, cases):
    """Each case: (files of a small tree, what a finding must contain, or None where nothing may be found).
    `problems(root)` yields findings. Exit 1 when a rule misses its bad snippet or flags a good one."""
    wrong = []
    for files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            found = list(problems(root))
        if expected is None and found:
            wrong.append(f"good code is flagged: {found} in {files}")
        elif expected is not None and not any(expected in line for line in found):
            wrong.append(f"no finding has '{expected}': {found} in {files}")
    print(f"{len(cases)} cases")
    finish("self test", wrong)
