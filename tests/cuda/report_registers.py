"""Writes what each kernel of the module of CUDA takes of registers and stack, and spills, into a report, from what nvcc said
when it was built; a kernel that spills fails. Skipped (77) where the module is not built.
Usage: report_registers.py REPORT LOG..."""
import pathlib
import re
import sys


def kernels(text):
    """(architecture, kernel, registers, stack bytes, spilled bytes) of ptxas -v."""
    for entry in text.split("Compiling entry function ")[1:]:
        name, arch = re.match(r"'(\S+)' for '(\S+)'", entry).groups()
        stack, stores, loads = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                         entry).groups()
        (registers,) = re.search(r"Used (\d+) registers", entry).groups()
        yield arch, name, int(registers), int(stack), int(stores) + int(loads)


report, *logs = sys.argv[1:]
if not logs:
    print("the module of CUDA is not built; NVIDIA's CUDA Toolkit and NCCL build it")
    sys.exit(77)
rows = sorted(row for log in logs for row in kernels(pathlib.Path(log).read_text()))
lines = [f"{arch:<8} {registers:>4} registers {stack:>6} bytes of stack {spilled:>6} spilled  {name}"
         for arch, name, registers, stack, spilled in rows]
pathlib.Path(report).write_text("\n".join(lines) + "\n")
spilling = [line for line in lines if not re.search(r" 0 spilled", line)]
print(f"{len(logs)} files, {len(rows)} kernels, {len(spilling)} of them spill; {report}")
print("\n".join(spilling))
sys.exit(not rows or bool(spilling))
