#!/usr/bin/env bash
# bundle.sh BUILD FOLDER: what a machine with a GPU needs to run check.sh, besides the CUDA Toolkit's libraries and Python:
# the program, the module, and the shared libraries that a bare machine lacks.
set -euo pipefail
if [ $# -ne 2 ] || [ ! -x "$1/tests/gpu/gpu_check" ]; then
  echo "usage: bundle.sh BUILD FOLDER, where BUILD has tests/gpu/gpu_check (ninja -C BUILD tests/gpu/gpu_check)" >&2
  exit 64
fi
build=$1 folder=$2 here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$folder/lib"
cp "$here/check.sh" "$here/torch_step.py" "$folder"
# Names for messages stay, what a debugger reads does not travel.
strip --strip-debug -o "$folder/gpu_check" "$build/tests/gpu/gpu_check"
chmod +x "$folder/gpu_check"
programs=("$folder/gpu_check")
if [ -e "$build/tests/gpu/llm_cuda.so" ]; then
  cp "$build/tests/gpu/llm_cuda.so" "$folder"
  programs+=("$folder/llm_cuda.so")
else
  echo "bundle.sh: $build has no module of CUDA (meson configure -Dcuda=enabled), so the bundle has none" >&2
fi
# The C library and the driver are the machine's, and the toolkit is asked for there. The libraries are found as in BUILD.
LD_LIBRARY_PATH= ldd "${programs[@]}" | while read -r name _ path _; do
  case $name in
    ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | libutil.so*) ;;
    libcuda.so* | libcublas* | libcudart*) ;;
    *.so*) if [ -f "$path" ] && [ ! "$path" -ef "$folder/lib/$name" ]; then cp -L "$path" "$folder/lib/$name"; fi ;;
  esac
done
du -sh "$folder" | sed 's/\t.*/ in the bundle/'
