# What quickstart.sh and run.sh share: Debian packages, quiet steps, configuring a build folder. Sourced from the
# repository's root. A package counts as there when what it brings works, wherever it came from; when all are there,
# nothing is fetched.

works() { command -v "$1" >/dev/null 2>&1; }

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

has_header() { printf '#include <%s>\n' "$1" | ${CXX:-c++} -x c++ -E - >/dev/null 2>&1; }

has_package() {
    case $1 in
    meson) works meson && [ "$(printf '1.0.0\n%s\n' "$(meson --version)" | sort -V | head -n 1)" = 1.0.0 ] ;;
    ninja-build) works ninja ;;
    g++) works c++ && works cc ;;
    clang) works clang && works clang++ ;;
    pkg-config | python3 | valgrind) works "$1" ;;
    nlohmann-json3-dev) is_installed "$1" || has_header nlohmann/json.hpp ;;
    libhwy-dev) is_installed "$1" || { works pkg-config && pkg-config --atleast-version=1.0.3 libhwy; } ;;
    doctest-dev) is_installed "$1" || has_header doctest/doctest.h ;;
    libclang-rt-dev) find "$(clang --print-runtime-dir 2>&1)" -name 'libclang_rt.asan*' 2>&1 | grep -q '/libclang_rt' ;;
    g++-aarch64-linux-gnu) works aarch64-linux-gnu-g++ ;;
    qemu-user) works qemu-aarch64 ;;
    libc6-dbg) is_installed "$1" || valgrind -q true >/dev/null 2>&1 ;;
    *) is_installed "$1" ;;
    esac
}

list_missing() {
    missing=
    for package; do has_package "$package" || missing="$missing $package"; done
}

# need_packages PACKAGE...: as root, install what is missing; otherwise say what it is, and stop.
need_packages() {
    list_missing "$@"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] || ! works apt-get; then
        printf 'Missing:%s\nOn Debian 12, install it as root, then run this script again:\n  apt-get install%s\n' \
            "$missing" "$missing" >&2
        exit 1
    fi
    printf 'Installing with apt-get:%s\n' "$missing"
    apt_log=$(mktemp)
    # shellcheck disable=SC2086 # one word a package
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
        >"$apt_log" 2>&1; then
        tail -n 20 "$apt_log" >&2
        printf 'apt-get could not install:%s\n' "$missing" >&2
        exit 1
    fi
    rm -f "$apt_log"
    list_missing "$@"
    [ -z "$missing" ] && return 0
    printf 'Installed, but too old or not found on PATH:%s\nDebian 12 or later has what is needed.\n' "$missing" >&2
    exit 1
}

# What every build needs, by the compilers that CC and CXX name.
need_build_packages() {
    case "${CC:-} ${CXX:-}" in
    *clang*) compiler=clang ;;
    *) compiler=g++ ;;
    esac
    need_packages "$compiler" meson ninja-build pkg-config python3 nlohmann-json3-dev libhwy-dev "$@"
}

# quietly LOG COMMAND...: output goes to the end of LOG. When the command fails its tail, less ninja's progress, is shown.
quietly() {
    log=$1
    shift
    status=0
    "$@" >>"$log" 2>&1 || status=$?
    [ "$status" = 0 ] && return 0
    printf -- '---- the last lines of %s ----\n' "$log" >&2
    grep -Ev '^\[[0-9]+/[0-9]+\] ' "$log" | tail -n 40 >&2
    return "$status"
}

# lend_headers FOLDER: for cross builds, this machine's copies of the libraries that are headers only, in a folder without
# its C library's.
lend_headers() {
    mkdir -p "$1/headers"
    for header in doctest/doctest.h hwy/base.h nlohmann/json.hpp; do
        found=$(printf '#include <%s>\n' "$header" | c++ -x c++ -E - | sed -n "s|^# 1 \"\(.*\)/$header\".*|\1|p" | head -n 1)
        ln -sfn "$found/${header%/*}" "$1/headers/${header%/*}"
    done
    printf "[built-in options]\ncpp_args = ['-isystem', '%s']\n" "$(CDPATH='' cd -- "$1/headers" && pwd)" >"$1/headers.ini"
}

# configure FOLDER OPTION...: make the build folder, or set the options of one that is there. Where that fails (Meson
# remembers that a header was missing, or was another version then) the folder is configured anew. Where $cross_file is
# set, for that machine and with what lend_headers made.
configure() {
    if [ -f "$1/build.ninja" ]; then
        meson configure "$@" && ninja -C "$1" build.ninja && return 0
        rm -rf "$1/build.ninja" "$1/meson-private"
    fi
    meson setup ${cross_file:+--cross-file "$cross_file" --cross-file "$1/headers.ini"} "$@"
}
