#!/usr/bin/env bash
# check.sh BUNDLE [--small]: the check of a machine with a GPU, at most 8 minutes, of what bundle.sh has put into BUNDLE.
# Exits with 0 where all that ran passed, 1 where something did not, 77 and one line where there is no GPU.
# --small: sizes for an emulated device (LLM_CUDA_MODULE).
set -u
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ ! -x "$1/gpu_check" ]; then
  echo "usage: check.sh BUNDLE [--small], where BUNDLE is a folder that bundle.sh has made" >&2
  exit 64
fi
bundle=$(cd "$1" && pwd) size=${2:-}
check=$bundle/gpu_check
# The toolkit, wherever it is, and what Python packages bring of it; the bundle's own libraries are found without.
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda-*/lib64 /usr/lib/python3*/*-packages/nvidia/*/lib \
  /usr/local/lib/python3*/*-packages/nvidia/*/lib; do
  [ -e "$folder/libcublasLt.so.13" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder && break
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

found=$("$check" device 2>&1)
code=$?
echo "$found"
# With a driver here, a module that cannot be used is a failure.
[ $code = 77 ] && [ -e /proc/driver/nvidia/version ] && code=1
[ $code = 0 ] || exit $code

table=() failed=''
# run NAME SECONDS COMMAND...: what it prints, and a line of the table.
run() {
  local name=$1 limit=$2 begin=$SECONDS code result
  shift 2
  echo "== $name"
  timeout --kill-after=5 "$limit" "$@" 2>&1
  code=$?
  case $code in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result="TIMED OUT after $limit s" ;;
    *) result="FAILED with exit code $code" ;;
  esac
  case $code in 0 | 77) ;; *) failed=yes ;; esac
  table+=("$(printf '%-24s %4d s  %s' "$name" $((SECONDS - begin)) "$result")")
}

run kernels 70 "$check" kernels ${size:+"$size"}
run parity 50 "$check" parity ${size:+"$size"}
sanitizer=$(command -v compute-sanitizer || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
for tool in memcheck racecheck; do
  if [ -n "$sanitizer" ]; then
    run "$tool" 50 "$sanitizer" --tool "$tool" --error-exitcode 3 "$check" kernels --small
  else
    table+=("$(printf '%-24s         skipped: no compute-sanitizer here' "$tool")")
  fi
done
run speed 60 "$check" speed ${size:+"$size"}
run train 90 "$check" train ${size:+"$size"}
if command -v python3 >/dev/null; then
  run "PyTorch beside it" 100 python3 "$bundle/torch_step.py" ${size:+"$size"}
else
  table+=("$(printf '%-24s         skipped: no python3 here' "PyTorch beside it")")
fi
# Ranks of one process have one device, which NCCL gives to one rank alone.
table+=("$(printf '%-24s         skipped: needs two devices, and a process for each (docs/gpu-check.md)' "NCCL between ranks")")

echo "== in all, $SECONDS s"
printf '%s\n' "${table[@]}"
[ -z "$failed" ]
