# Sourced by train.sh and test.sh: configure and build, quiet while all is well. Needs scripts/packages.sh.

# Open MPI refuses to start as root (the normal case in a container) without both of these.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# configure FOLDER COMPILER [meson option...]: the first time only; afterwards ninja reconfigures by itself.
configure() {
  local folder=$1 compiler=$2
  shift 2
  [ -f "$folder/build.ninja" ] && return 0
  mkdir -p "$folder"
  say "configuring $folder with $compiler"
  if ! CXX=$compiler meson setup "$folder" "$@" >"$folder/configure.log" 2>&1 </dev/null; then
    tail -n 20 "$folder/configure.log" >&2
    say "configuring $folder failed; the whole output is in $folder/configure.log"
    return 1
  fi
}

# build FOLDER [target...]: a terminal sees ninja's own progress, anything else only what failed.
build() {
  local folder=$1
  shift
  if [ -t 2 ] && [ ! -e "$folder/.built" ]; then
    ninja -C "$folder" "$@" >&2 || return 1
  elif ! ninja -C "$folder" "$@" >"$folder/build.log" 2>&1 </dev/null; then
    tail -n 40 "$folder/build.log" >&2
    say "building $folder failed; the whole output is in $folder/build.log"
    return 1
  fi
  touch "$folder/.built"
}
