"""Holds the first ```cpp block of a text against a source file. Usage: readme_block.py TEXT SOURCE [--write]"""
import difflib
import pathlib
import re
import sys

text_path, source_path = map(pathlib.Path, sys.argv[1:3])
text, source = text_path.read_text(), source_path.read_text()
block = re.search(r"```cpp\n(.*?)```", text, re.S)
if "--write" in sys.argv:
    text_path.write_text(text[: block.start(1)] + source + text[block.end(1) :])
elif block.group(1) != source:
    print(f"{text_path.name} does not show {source_path.name} as it is:")
    print(*difflib.unified_diff(block.group(1).splitlines(), source.splitlines(), lineterm="", n=1), sep="\n")
    print(f"run: python3 tests/mpi/readme_block.py {text_path} {source_path} --write")
    sys.exit(1)
print("the block is the file")
