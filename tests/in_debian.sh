#!/usr/bin/env bash
# The tests with a Python that Debian's unstable has: tests/in_debian.sh 3.14 FOLDER, in a clone of the repository, as root.
#
# The folder becomes a Debian of its own, in which with_python.sh runs on a copy of this clone; status 77: it cannot be had here.
set -euo pipefail
release=$1 folder=$2
[ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null || { echo "Python $release: needs root and debootstrap"; exit 77; }
packages=python$release,python$release-venv,ca-certificates,git
debootstrap --variant=minbase --include="$packages" sid "$folder" > "$folder.log" 2>&1 || {
    tail -n 3 "$folder.log"
    exit 77
}
git clone --quiet . "$folder/root/clone"
# pip asks as it does outside
cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
for file in /etc/pip.conf /etc/resolv.conf /etc/hosts; do [ ! -e "$file" ] || cp "$file" "$folder/etc/"; done
mkdir -p "$folder/root/shared" "$folder/opt"
inside() {
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    [ ! -e ../shared ] || mount --rbind ../shared "$1/root/shared"
    mount --rbind /opt "$1/opt"
    exec chroot "$1" bash -c "cd /root/clone && exec tests/with_python.sh $2 /root/python"
}
export -f inside
unshare --mount --propagation private bash -euo pipefail -c 'inside "$@"' inside "$folder" "$release"
