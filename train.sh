#!/usr/bin/env bash
# Installs what is missing, builds, and trains:
#   ./train.sh                                   configs/quickstart.yaml on 2 ranks of this machine
#   ./train.sh training.max_steps=50             arguments go to llm-train
#   ./train.sh --config-path configs/FILE.yaml   another configuration
#   RANKS=4 ./train.sh                           another number of ranks
# CXX chooses the compiler of the first build (default clang++-19).
set -u
start_folder=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 70
. scripts/packages.sh
. scripts/build.sh

arguments=() has_config='' needs_ranks=yes relative_next=''
for argument in "$@"; do
  # A path is meant from where the user stands.
  if [ -n "$relative_next" ]; then
    [ -e "$start_folder/$argument" ] && argument=$start_folder/$argument
    relative_next=''
  fi
  case $argument in
    --config-path) has_config=yes relative_next=yes ;;
    --config-path=*)
      has_config=yes path=${argument#*=}
      [ -e "$start_folder/$path" ] && argument=--config-path=$start_folder/$path ;;
    --help | -h | --version | --plan | --explain | --explain=*) needs_ranks='' ;;
  esac
  arguments+=("$argument")
done
[ -n "$has_config" ] || arguments=(--config-path configs/quickstart.yaml ${arguments[@]+"${arguments[@]}"})

install_missing build
[ -x build/llm-train ] || say "building build/llm-train (once; takes a few minutes)"
configure build "$(default_compiler)" && build build llm-train || exit 70

[ -n "$needs_ranks" ] || exec build/llm-train "${arguments[@]}"

# Under mpirun a rank's output is a pipe, so only this script knows whether a person is watching.
if [ -t 1 ]; then
  export LLM_TRAIN_TTY=1
  size=$(stty size 2>/dev/null </dev/tty) && export COLUMNS="${size#* }"
fi
# Ranks may outnumber cores; with enough cores the flag changes nothing, and each rank is bound to one.
exec mpirun --oversubscribe -n "${RANKS:-2}" build/llm-train "${arguments[@]}"
