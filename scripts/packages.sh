# Sourced by train.sh and test.sh: what the build needs, and how it gets there.
#   install_missing FOLDER [full]   returns when everything is there; otherwise installs it, or says what is missing and
#                            exits 78. FOLDER is the build folder: once it is configured, nothing is probed again.
#                            `full` adds what only `./test.sh --full` uses.
# With everything installed it costs one dpkg-query (about 10 ms), so every start can afford it.

# Debian 12's package | needed by | probe where no package manager may be asked | who brings it without root
#   build: nothing builds without it    check: some tests are skipped without it    wrap: meson fetches it by itself
#   full: some tests of ./test.sh --full are skipped without it; nothing else asks for it
# libboost1.81-dev conflicts with libboost1.74-dev (Debian's default); installing it removes that package.
packages_table='
clang-19|build|command clang++-19 clang++ g++ c++|module load llvm (clang 16 or newer) or gcc (12 or newer), then CXX=clang++ or CXX=g++
libopenmpi-dev|build|command mpicxx|module load openmpi (4.1 or newer)
openmpi-bin|build|command mpirun|module load openmpi (4.1 or newer)
libboost1.81-dev|build|header boost/asio/io_context.hpp boost|module load boost (1.81 or newer; headers suffice)
libdnnl-dev|build|header oneapi/dnnl/dnnl.h dnnl|module load oneDNN (2.6 or newer) or intel-oneapi-dnn
libpcre2-dev|build|header pcre2posix.h libpcre2-8|module load pcre2 (10.40 or newer)
meson|build|command meson|module load meson, or: python3 -m pip install --user meson
ninja-build|build|command ninja|module load ninja, or: python3 -m pip install --user ninja
pkg-config|build|command pkg-config|module load pkgconf
python3|build|command python3|module load python (3.9 or newer)
libfmt-dev|wrap|header fmt/format.h fmt|subprojects/fmt.wrap, or module load fmt
libyaml-cpp-dev|wrap|header yaml-cpp/yaml.h yaml-cpp|subprojects/yaml-cpp.wrap, or module load yaml-cpp
nlohmann-json3-dev|wrap|header nlohmann/json.hpp nlohmann_json|subprojects/nlohmann_json.wrap, or module load nlohmann_json
libcli11-dev|wrap|header CLI/CLI.hpp CLI11|subprojects/cli11.wrap, or module load cli11
libhwy-dev|wrap|header hwy/highway.h libhwy|subprojects/highway.wrap, or module load highway
catch2|wrap|header catch2/catch.hpp catch2|subprojects/catch2.wrap
zlib1g-dev|check|header zlib.h zlib|module load zlib
libhwloc-dev|check|header hwloc.h hwloc|module load hwloc
g++|check|command g++-12 g++|module load gcc (12 or newer)
libclang-rt-19-dev|check|command clang++-19|module load llvm (its sanitizer runtime)
clang-format-19|check|command clang-format-19|module load llvm (19)
universal-ctags|check|command ctags|module load universal-ctags
iproute2|check|command ip|a machine that has it: ip makes network namespaces
slurm-wlm|full|command slurmctld|module load slurm (22.05 or newer)
munge|full|command munged|module load munge (0.5 or newer)
chromium|full|command chromium chromium-browser google-chrome|module load chromium
'

say() { printf '%s\n' "$*" >&2; }

die() {
  local status=$1
  shift
  say "$@"
  exit "$status"
}

# The table's packages that dpkg does not have, one a line; with `full` those too.
packages_missing() {
  local names=() name kind rest installed
  while IFS='|' read -r name kind rest; do
    [ -n "$name" ] && { [ "$kind" != full ] || [ "${1:-}" = full ]; } && names+=("$name")
  done <<<"$packages_table"
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}|${Package}|\n' "${names[@]}" 2>/dev/null)
  for name in "${names[@]}"; do
    case $installed in *"ii |$name|"*) ;; *) echo "$name" ;; esac
  done
}

# Whether one of the commands, or the header (with its pkg-config name), can be used as things stand.
probe() {
  local kind=$1 compiler flags
  shift
  if [ "$kind" = command ]; then
    local candidate
    for candidate in "$@"; do command -v "$candidate" >/dev/null 2>&1 && return 0; done
    return 1
  fi
  compiler=$(default_compiler)
  flags=$(pkg-config --cflags "$2" 2>/dev/null)
  # shellcheck disable=SC2086  # the flags are several words
  printf '#include <%s>\n' "$1" | $compiler -std=c++20 -fsyntax-only -x c++ $flags - >/dev/null 2>&1
}

# CXX if set; otherwise the compiler the project is developed with, otherwise what there is.
default_compiler() {
  local candidate
  [ -n "${CXX:-}" ] && { echo "$CXX"; return; }
  for candidate in clang++-19 clang++ g++; do
    command -v "$candidate" >/dev/null 2>&1 && { echo "$candidate"; return; }
  done
  echo c++
}

# Prints what makes a command run as root (nothing for root itself); fails when neither is possible.
root_prefix() {
  [ "$(id -u)" = 0 ] && return 0
  command -v sudo >/dev/null 2>&1 || return 1
  { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; } && echo sudo
}

apt_install() {
  local prefix=$1 log=$2
  shift 2
  $prefix env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1 </dev/null
}

install_with_apt() {
  local prefix=$1 log
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/llm-train-apt.XXXXXX")
  say "installing: $*"
  case " $* " in
    *" libboost1.81-dev "*)
      if dpkg-query -W -f='${db:Status-Abbrev}' libboost1.74-dev 2>/dev/null | grep -q '^ii'; then
        say "  note: libboost1.81-dev replaces libboost1.74-dev (Debian lets only one of them be installed)"
      fi ;;
  esac
  # The lists are refreshed only when they prove to be missing or out of date.
  if ! apt_install "$prefix" "$log" "$@"; then
    say "  refreshing the package lists"
    $prefix apt-get update >>"$log" 2>&1 </dev/null
    if ! apt_install "$prefix" "$log" "$@"; then
      tail -n 15 "$log" >&2
      say "apt-get could not install: $*; the whole output is in $log"
      return 1
    fi
  fi
  rm -f "$log"
}

# For a machine where nothing may be installed: fine when everything needed can be found all the same.
report_missing() {
  local name kind test way fatal='' fetched='' skipped=''
  while IFS='|' read -r name kind test way; do
    [ -n "$name" ] && [ "$kind" != full ] || continue  # those need root too
    # shellcheck disable=SC2086  # the probe is several words
    probe $test && continue
    case $kind in
      build) fatal+="  $name: $way"$'\n' ;;
      wrap) fetched+="  $name: $way"$'\n' ;;
      check) skipped+="  $name: $way"$'\n' ;;
    esac
  done <<<"$packages_table"
  if [ -n "$fatal" ]; then
    printf '%s\n' "Missing, and neither root nor sudo with apt-get is here to install it. What brings each:" >&2
    printf '%s' "$fatal$fetched" >&2
    [ -n "$skipped" ] && printf 'Missing too, but only some tests need it:\n%s' "$skipped" >&2
    exit 78
  fi
  if [ -n "$fetched" ]; then
    say "Not installed; meson fetches these by their wraps (needs git and network, once):"
    printf '%s' "$fetched" >&2
  fi
}

install_missing() {
  local folder=$1 full=${2:-} needed missing extra prefix
  if command -v dpkg-query >/dev/null 2>&1; then
    needed=$(packages_missing)
    missing=$(packages_missing "$full")
    [ -z "$missing" ] && return 0
    if command -v apt-get >/dev/null 2>&1 && prefix=$(root_prefix); then
      # shellcheck disable=SC2086  # one package a word
      [ -z "$needed" ] || install_with_apt "$prefix" $needed || die 78 "The packages are those of Debian 12; on another system \
load or install what scripts/packages.sh lists and start again."
      extra=$(printf '%s\n' "$missing" | while read -r name; do
        case $'\n'$needed$'\n' in *$'\n'$name$'\n'*) ;; *) echo "$name" ;; esac
      done)
      # shellcheck disable=SC2086
      [ -z "$extra" ] || install_with_apt "$prefix" $extra || say "Only some tests need these; they are skipped."
      return 0
    fi
  fi
  [ -f "$folder/build.ninja" ] || report_missing
}
