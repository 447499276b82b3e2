"""Each header compiles alone, twice in one file, with the flags of this build: check_headers.py BUILD_FOLDER.
The build itself has shown it of a header with `#pragma once` that a source includes before anything else."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import tree

KEPT = ("-I", "-isystem", "-D", "-std", "-f", "-W", "-m", "-pthread")


def compilers(build):
    """{folder of the tree: compiler and flags of a file compiled there}; "" stands for any folder."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        first = next(i for i, word in enumerate(words) if word.startswith("-"))
        flags, rest = [], iter(words[first:])
        for word in rest:
            if word == "-isystem":
                flags += [word, str((build / next(rest)).resolve())]
            elif word.startswith("-I"):
                flags.append(f"-I{(build / word[2:]).resolve()}")
            elif word.startswith(KEPT) and not word.startswith("-fsanitize"):
                flags.append(word)
        source = (build / entry["file"]).resolve()
        if source.is_relative_to(tree.ROOT):
            folder = source.parent.relative_to(tree.ROOT).as_posix()
            found.setdefault(folder, (words[:first], flags))
    return found


def all_flags(found):
    """For a folder in which nothing is compiled: everything that any folder has."""
    compiler = next(iter(found.values()))[0]
    return compiler, list(dict.fromkeys(flag for _, flags in found.values() for flag in flags if "isystem" not in flag))


def compiled(build):
    """The sources of the tree that the build compiles, each by itself."""
    files = {(build / entry["file"]).resolve() for entry in json.loads((build / "compile_commands.json").read_text())}
    return [file for file in sorted(files) if file.is_relative_to(tree.ROOT)]


def shown_by(sources):
    """What those sources include before anything else."""
    directives = [re.search(r"^[ \t]*#[ \t]*(.*)$", source.read_text(), re.M) for source in sources]
    includes = [re.match(r'include[ \t]*"(.*)"', found[1]) for found in directives if found]
    return {include[1] for include in includes if include}


def check(header, command, root):
    compiler, flags = command
    text = f'#include "{header}"\n' * 2
    run = subprocess.run([*compiler, *flags, f"-I{root}", "-fsyntax-only", "-x", "c++", "-"], input=text,
                         capture_output=True, text=True)
    return f"{header}: does not compile alone\n{run.stderr[:2000]}" if run.returncode else None


def problems(root, found, sources):
    shown = shown_by(sources)
    headers = [p.relative_to(root).as_posix() for p in tree.sources(root) if p.suffix == ".h"
               and not (p.relative_to(root).as_posix() in shown and "#pragma once\n" in p.read_text())]
    anywhere = all_flags(found)
    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        # Code of a device is compiled against the headers of the emulator, in another folder.
        commands = [anywhere if header.startswith("tensor/cuda/") else found.get(os.path.dirname(header), anywhere)
                    for header in headers]
        yield from filter(None, pool.map(check, headers, commands, [root] * len(headers)))


def self_test(found):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src").mkdir()
        (root / "src/good.h").write_text("#pragma once\nstruct A {};\n")
        (root / "src/needs.h").write_text("#pragma once\nstd::string name();\n")
        (root / "src/twice.h").write_text("struct B {};\n")
        (root / "src/shown.h").write_text("#pragma once\nnamed once;\n")
        sources = {"needs": "#include <string>\n#include \"src/needs.h\"\n", "twice": "#include \"src/twice.h\"\n",
                   "shown": "// the first\n#include \"src/shown.h\"\n#include <string>\n"}
        for name, text in sources.items():
            (root / f"src/{name}.cpp").write_text(text)
        flagged = [line.split(":")[0] for line in problems(root, found, sorted((root / "src").glob("*.cpp")))]
    print("4 cases")
    tree.finish("self test", [] if flagged == ["src/needs.h", "src/twice.h"] else [f"flagged {flagged}"])


if __name__ == "__main__":
    build = pathlib.Path(sys.argv[1]).resolve()
    commands = compilers(build)
    if "--self-test" in sys.argv:
        self_test(commands)
    tree.finish("headers", list(problems(tree.ROOT, commands, compiled(build))))
