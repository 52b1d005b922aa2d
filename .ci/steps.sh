# What .ci/run and .ci/full share: sourced by both, in a clone's root. $work is a temporary folder that they remove.
top=$PWD
work=$(mktemp -d)
groups=()
trap 'for group in "${groups[@]}"; do kill -- "-$group" 2> /dev/null || true; done; rm -rf --one-file-system "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

step() { printf '\n== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

# A command whose output is wanted only where it fails: quietly NAME COMMAND...
quietly() { "${@:2}" > "$work/$1.out" 2>&1 || { tail -n 60 "$work/$1.out"; return 1; }; }

# The same, and its last lines where it succeeds: last LINES NAME COMMAND...
last() {
    quietly "${@:2}" || return 1
    tail -n "$1" "$work/$2.out"
}

# Debian packages that a later step needs and this machine lacks: need COMMAND PACKAGE...
need() {
    command -v "$1" > /dev/null || quietly apt bash -c 'apt-get -qq update && apt-get -qq install -y "$@"' apt "${@:2}"
}

# The README's commands, read from it: the first two fenced blocks marked bash.
readme_command() {
    awk -v want="$1" '/^```bash$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside && n == want' README.md
}

# The repository as a clone has it, and an empty virtual environment, which is active from here on.
clone_and_environment() {
    python3 -m venv "$work/venv"
    # shellcheck disable=SC1091
    . "$work/venv/bin/activate"
    git clone --quiet "$top" "$work/clone"
    [ ! -d "$top/../shared" ] || ln -s "$(cd "$top/../shared" && pwd)" "$work/shared"
    cd "$work/clone"
}

# What the tests need beyond README's second command: development tools, the test device's PyCUDA, a browser, Ray, MPI.
more_packages() {
    need g++ g++
    need chromium-headless-shell chromium-headless-shell
    need ip iproute2
    quietly pycuda tests/cpu_device/install_pycuda.sh python
    PIP_NO_COMPILE=1 python -m pip -q install -e ".[dev,browser,docs,notebook,ray,mpi]" psutil build coverage # most modules are never imported
}
