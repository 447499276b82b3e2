#!/usr/bin/env bash
# Builds everything and runs the tests; the last line is "N passed, N failed, N skipped".
#   ./test.sh              the default suites, built with clang++-19 (CXX chooses another compiler)
#   ./test.sh ARGS         ARGS go to meson test: a test's name, --suite unit, --list, -v
#   ./test.sh --full       all of it: full counts and the suites "full", "slurm" and "netns" (both need root), then the
#                          default suites again built with g++, and built with address and undefined-behaviour sanitizers
# Not run here: meson test -C build --benchmark (speeds, printed and never judged).
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 70
. scripts/packages.sh
. scripts/build.sh

full=''
arguments=()
for argument in "$@"; do
  case $argument in
    --full) full=yes ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' test.sh; exit 0 ;;
    *) arguments+=("$argument") ;;
  esac
done

# What count_tests.py adds up: LABEL=LOG=STATUS of each run.
runs=()
# run LABEL FOLDER SETUP [meson test argument...]: SETUP is one of those in tests/lint/meson.build.
run() {
  local label=$1 folder=$2 setup=$3 log=$2/meson-logs/$1.json status
  shift 3
  rm -f "$folder"/meson-logs/testlog*.json "$log"
  meson test -C "$folder" --no-rebuild --print-errorlogs --setup "$setup" "$@" \
    ${arguments[@]+"${arguments[@]}"} </dev/null
  status=$?
  mv -f "$folder"/meson-logs/testlog*.json "$log" 2>/dev/null
  runs+=("$label=$log=$status")
}

# prepare LABEL FOLDER COMPILER [meson option...]: a build that fails counts as one failed test.
prepare() {
  local label=$1 folder=$2 compiler=$3
  shift 3
  configure "$folder" "$compiler" "$@" && build "$folder" && return 0
  runs+=("$label=not-built=1")
  return 1
}

install_missing build ${full:+full}
for argument in ${arguments[@]+"${arguments[@]}"}; do
  [ "$argument" = --list ] && prepare default build "$(default_compiler)" && exec meson test -C build --list
done
# All sources of a target as one: headers and templates are compiled once a target, not once a source.
unity=(-Dunity=on -Dunity_size=1000 -Dcuda=disabled)
if [ -z "$full" ]; then
  [ -e build/.built ] || say "building (once; takes a few minutes)"
  prepare default build "$(default_compiler)" && run default build default
else
  say "== $(default_compiler), full counts"
  prepare full build "$(default_compiler)" && run full build full
  if command -v g++ >/dev/null 2>&1; then
    say "== g++"
    prepare gcc build-gcc g++ "${unity[@]}" && run gcc build-gcc default --no-suite lint  # they have run
  else
    say "g++ is not here: its run is left out"
  fi
  say "== sanitizers"
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  if prepare sanitizers build-asan "$(default_compiler)" "${unity[@]}" -Doptimization=0 \
    -Db_sanitize=address,undefined -Db_lundef=false; then
    # Open MPI keeps memory to the end of the process, so leaks are looked for where it does not run.
    beside=(--no-suite full --no-suite slurm --no-suite netns)
    ASAN_OPTIONS=detect_leaks=1 run sanitizers-unit build-asan sanitizers --suite unit "${beside[@]}"
    ASAN_OPTIONS=detect_leaks=0 run sanitizers build-asan sanitizers --no-suite unit --no-suite lint "${beside[@]}"
  fi
fi
python3 scripts/count_tests.py "${runs[@]}"
