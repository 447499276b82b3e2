"""Text files as a C++ source, so that a program carries them: embed_text.py OUTPUT NAME=FILE ... defines
`extern const std::string_view NAME` in namespace llm for each."""
import pathlib
import sys

PIECE = 8000  # bytes of one literal: standards promise 65536 of a whole one, and compilers read short ones faster


def literal(text):
    pieces = [text[begin:begin + PIECE] for begin in range(0, len(text), PIECE)]
    assert ')text"' not in text, "the literal would end early"
    return "\n".join(f'R"text({piece})text"' for piece in pieces)


def main():
    output, *entries = sys.argv[1:]
    parts = ["#include <string_view>", "namespace llm {"]
    for entry in entries:
        name, path = entry.split("=", 1)
        text = pathlib.Path(path).read_text(encoding="utf-8")
        parts.append(f"extern const std::string_view {name};\nconst std::string_view {name} =\n{literal(text)};")
    pathlib.Path(output).write_text("\n".join([*parts, "}  // namespace llm", ""]), encoding="utf-8")


main()
