#!/usr/bin/env bash
# The tests with the Python of another release of Debian: tests/other_python.sh RELEASE, in a clone of the repository.
#
# That release is put into a temporary folder (debootstrap), in which the README's second command runs, with the clone and the
# shared/ beside it. Needs root; CI runs it for trixie, whose Python is 3.13. Status 3: the release could not be had.
set -euo pipefail
release=$1
top=$PWD
export PATH=$PATH:/usr/sbin:/sbin
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT

packages=python3-venv,ca-certificates
debootstrap --variant=minbase --include="$packages" "$release" "$root" > "$root.out" 2>&1 || { tail -n 5 "$root.out"; exit 3; }
rm "$root.out"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root/work/clone" "$root/work/shared"
{
    echo 'set -euo pipefail; python3 --version; python3 -m venv /venv; . /venv/bin/activate; cd /work/clone'
    awk '/^```bash$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside && n == 2' README.md
} > "$root/work/commands"

# The mounts are in a namespace of their own, and end with it.
mounts='mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --bind "$1" "$0/work/clone"
    [ ! -d "$1/../shared" ] || mount --bind "$1/../shared" "$0/work/shared"
    exec chroot "$0" bash /work/commands'
unshare --mount --pid --fork --kill-child sh -ec "$mounts" "$root" "$top"
