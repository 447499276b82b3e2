"""Nothing unused: each .cpp is compiled by the build (check_unused.py BUILD_FOLDER) or named in a meson.build of its
folder or above, each header is included, each script is named by something that runs it, each configs/*.yaml is named
by a test or read by a test that takes them all."""
import json
import pathlib
import re
import sys

import tree


def built(root, path):
    """Whether a meson.build at or above `path` names it, with or without its suffix (a list of test names)."""
    folder = path.parent
    while True:
        listing = folder / "meson.build"
        if listing.exists():
            name = path.relative_to(folder).as_posix()
            text = re.sub(r"#.*", "", listing.read_text())
            quoted = set(re.findall(r"'([^']*)'", text))
            if quoted & {name, name.rsplit(".", 1)[0]}:
                return True
        if folder == root:
            return False
        folder = folder.parent


def compiled(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    return {(build / command["file"]).resolve() for command in commands}


def problems(root, known=frozenset()):
    files = list(tree.sources(root))
    included, libraries = set(), set()
    for path in files:
        here = path.relative_to(root).as_posix()
        included |= set(re.findall(r'#\s*include\s*"([^"]+)"', path.read_text())) - {here}
        libraries |= set(re.findall(r'#\s*include\s*<([^>]+)>', path.read_text()))
    for path in files:
        here = path.relative_to(root).as_posix()
        if path.suffix in (".h", ".cuh"):
            stands_in = here.rpartition("/include/")[2] in libraries  # for a library's header
            if here not in included and not stands_in:
                yield f"{here}: no file includes it"
        elif path.resolve() not in known and not built(root, path):
            yield f"{here}: nothing compiles it"
    yield from unused_scripts(root)
    yield from unused_configs(root)


def unused_scripts(root):
    listings = [p for p in root.rglob("meson.build") if not p.relative_to(root).parts[0].startswith("build")]
    scripts = [p for folder in ("scripts", "tests") for p in sorted((root / folder).rglob("*"))
               if p.suffix in (".py", ".sh")]
    users = listings + scripts + [root / "train.sh", root / "test.sh", root / ".ci/run"]
    texts = {p: p.read_text() for p in users if p.exists()}
    pages = [p.read_text() for p in (root / "tests").rglob("*.md")]
    for path in scripts:
        name = path.name if path.suffix == ".sh" else path.stem
        others = [text for user, text in texts.items() if user != path] + pages
        if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in others):
            yield f"{path.relative_to(root).as_posix()}: nothing runs it"


def unused_configs(root):
    tests = [p.read_text() for p in (root / "tests").rglob("*")
             if p.suffix in (".cpp", ".py", ".h", ".build") and "lint" not in p.relative_to(root).parts]
    takes_all = any("configs" in text and re.search(r"directory_iterator|\bglob\b", text) for text in tests)
    for path in sorted((root / "configs").rglob("*.yaml")):
        if not takes_all and not any(path.name in text for text in tests):
            yield f"{path.relative_to(root).as_posix()}: no test loads it"


CASES = [
    ({"src/a/x.cpp": '#include "src/a/x.h"\n', "src/a/x.h": "", "src/a/meson.build": "library('a', 'x.cpp')"}, None),
    ({"src/a/x.cpp": "", "src/a/meson.build": "library('a', 'xx.cpp')"}, "x.cpp: nothing compiles it"),
    ({"src/a/x.cpp": "", "src/a/meson.build": "# it's here\nlibrary('a', 'x.cpp')"}, None),
    ({"src/a/x.cpp": "", "src/meson.build": "library('a', 'a/x.cpp')"}, None),
    ({"tests/a/x.cpp": "", "tests/a/meson.build": "foreach name : ['x', 'y']"}, None),
    ({"src/a/x.h": '#include "src/a/x.h"\n'}, "x.h: no file includes it"),
    ({"tests/include/y.h": "", "src/a/x.cpp": "#include <y.h>\n", "src/a/meson.build": "library('a', 'x.cpp')"}, None),
    ({"tests/include/y.h": "", "src/a/x.cpp": "#include <z.h>\n", "src/a/meson.build": "library('a', 'x.cpp')"},
     "y.h: no file includes it"),
    ({"scripts/x.py": "", "test.sh": "python3 scripts/x.py"}, None),
    ({"scripts/x.sh": "", "test.sh": ""}, "x.sh: nothing runs it"),
    ({"configs/q.yaml": "", "tests/t.cpp": '"configs/q.yaml"', "tests/meson.build": "'t.cpp'"}, None),
    ({"configs/q.yaml": "", "tests/t.cpp": '"configs" directory_iterator', "tests/meson.build": "'t.cpp'"}, None),
    ({"configs/q.yaml": ""}, "q.yaml: no test loads it"),
]

if __name__ == "__main__":
    if "--self-test" in sys.argv:
        tree.self_test(problems, CASES)
    tree.finish("unused", list(problems(tree.ROOT, compiled(pathlib.Path(sys.argv[1])))))
