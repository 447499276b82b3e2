"""Compiles every file of kernels with nvcc for sm_80, sm_90 and as PTX; a warning is an error. Writes what each kernel
takes of registers and stack, and spills, into a report. Skipped (77) without nvcc.
Usage: compile_kernels.py ROOT REPORT FILE..."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# No contraction of a product and a sum: the CPU's bodies have none, and bits must not depend on the device.
FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-Werror", "all-warnings",
         "-Xcompiler", "-Wall,-Wextra,-Werror", "-Xptxas", "-v",
         "-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90",
         "-gencode", "arch=compute_90,code=compute_90", '-DLLM_CUDA_BUILD="compiled"']


def find_nvcc():
    folder = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("nvcc") or shutil.which("nvcc", path=folder / "bin")


def compile_one(nvcc, root, file, folder):
    output = pathlib.Path(folder) / (pathlib.Path(file).name + ".o")
    return subprocess.run([nvcc, *FLAGS, f"-I{root}", "-c", file, "-o", str(output)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def has_header(nvcc, header):
    return subprocess.run([nvcc, "-x", "cu", "-E", "-"], input=f"#include <{header}>", text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def kernels(text):
    """(architecture, kernel, registers, stack bytes, spilled bytes) of ptxas -v."""
    for entry in text.split("Compiling entry function ")[1:]:
        name, arch = re.match(r"'(\S+)' for '(\S+)'", entry).groups()
        stack, stores, loads = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                         entry).groups()
        (registers,) = re.search(r"Used (\d+) registers", entry).groups()
        yield arch, name, int(registers), int(stack), int(stores) + int(loads)


def main():
    root, report, *files = sys.argv[1:]
    nvcc = find_nvcc()
    if nvcc is None:
        print("nvcc is not here; it comes with NVIDIA's CUDA Toolkit")
        sys.exit(77)
    if not has_header(nvcc, "nccl.h"):
        print("nccl.h is not here, it comes with NVIDIA's NCCL: what needs it is left out")
        files = [f for f in files if "<nccl.h>" not in (pathlib.Path(root) / f).read_text()]
    rows, n_failed = [], 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, done in zip(files, pool.map(lambda f: compile_one(nvcc, root, f, folder), files)):
            found = list(kernels(done.stdout))
            has_kernels = "__global__" in (pathlib.Path(root) / file).read_text()
            if done.returncode != 0 or has_kernels != bool(found):
                n_failed += 1
                print(f"{file}: nvcc returned {done.returncode}, {len(found)} kernels\n{done.stdout}")
            rows += found
    rows.sort()
    lines = [f"{arch:<8} {registers:>4} registers {stack:>6} bytes of stack {spilled:>6} spilled  {name}"
             for arch, name, registers, stack, spilled in rows]
    pathlib.Path(report).write_text("\n".join(lines) + "\n")
    spilling = [line for line in lines if not re.search(r" 0 spilled", line)]
    print(f"{len(files)} files, {len(rows)} kernels, {len(spilling)} of them spill; {report}")
    print("\n".join(spilling))
    sys.exit(n_failed != 0)


main()
