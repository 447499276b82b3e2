"""Compiles one file of the module of CUDA with nvcc for sm_80, sm_90 and as PTX. A warning is an error.
Usage: compile.py NVCC OBJECT DEPFILE LOG FILE [nvcc argument...]; LOG gets what each kernel takes of registers."""
import pathlib
import subprocess
import sys

# No contraction of a product and a sum: the CPU's bodies have none, and bits must not depend on the device.
FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-Werror", "all-warnings",
         "-Xcompiler", "-Wall,-Wextra,-Werror,-fPIC", "-Xptxas", "-v",
         "-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90",
         "-gencode", "arch=compute_90,code=compute_90"]

nvcc, output, depfile, log, file, *arguments = sys.argv[1:]
done = subprocess.run([nvcc, *FLAGS, *arguments, "-MD", "-MF", depfile, "-MT", output, "-c", file, "-o", output],
                      text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
pathlib.Path(log).write_text(done.stdout)
if done.returncode != 0:
    print(done.stdout)
sys.exit(done.returncode)
