"""Two hosts made of network namespaces, with a link between them that can be cut.

with two_hosts(folder) as hosts:   hosts.start(1, "minicaffe", ...);   hosts.mpiexec("-n", "2", "minicaffe", ...);   hosts.cut()

Each host has an address and a name of its own; files are shared. Needs Linux, root and `ip`. A rank on the second host is
started by a launch agent, as ssh would start it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = ("10.213.57.1", "10.213.57.2")

AGENT = """#!/bin/sh
# what mpiexec calls in place of ssh: AGENT HOST COMMAND...
shift
exec ip netns exec {space} unshare --uts sh -c "hostname {name}; $*"
"""


@dataclass
class Hosts:
    """Two namespaces; names are the hosts'."""

    spaces: tuple[str, str]
    names: tuple[str, str]
    agent: Path

    def start(self, which: int, *words: str, **options: object) -> subprocess.Popen[str]:
        """Start a command on the first host (0) or the second."""
        inside = f'hostname {self.names[which]}; exec "$@"'
        command = ("ip", "netns", "exec", self.spaces[which], "unshare", "--uts", "sh", "-c", inside, "sh", *words)
        return subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload,no-any-return]

    def mpiexec(self, *words: str, **options: object) -> subprocess.Popen[str]:
        """mpiexec on the first host, with a rank on each."""
        settings = ["--prtemca", "plm_ssh_agent", str(self.agent), "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        command = [shutil.which("mpiexec", path=search_path()) or "mpiexec", *settings, "--host", ",".join(ADDRESSES)]
        return self.start(0, *command, "--map-by", "ppr:1:node", *words, **options)

    def cut(self) -> None:
        """Take the link down at the second host: nothing arrives any more, and the first is not notified."""
        ip("-n", self.spaces[1], "link", "set", "link0", "down")


def search_path() -> str:
    """PATH, with the folder of this Python's commands first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def run_in(space: str, *words: str) -> None:
    ip("netns", "exec", space, *words)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Yield the hosts, which end with the block. Raises OSError or CalledProcessError if they cannot be made."""
    mark = secrets.token_hex(3)
    spaces, names = (f"mc-{mark}-a", f"mc-{mark}-b"), ("host-a", "host-b")
    agent = folder / "agent.sh"
    agent.write_text(AGENT.format(space=spaces[1], name=names[1]))
    agent.chmod(0o755)
    try:
        for space in spaces:
            ip("netns", "add", space)
        ip("link", "add", "link0", "netns", spaces[0], "type", "veth", "peer", "name", "link0", "netns", spaces[1])
        for space, address in zip(spaces, ADDRESSES, strict=True):
            ip("-n", space, "address", "add", f"{address}/24", "dev", "link0")
            for link in ("lo", "link0"):
                ip("-n", space, "link", "set", link, "up")
            ip("-n", space, "route", "add", "default", "dev", "link0")  # by which Ray finds the address of its host
            run_in(space, "sh", "-c", "echo 5 > /proc/sys/net/ipv4/tcp_retries2")  # mpiexec, too, gives up soon
        yield Hosts(spaces, names, agent)
    finally:
        for space in spaces:
            pids = subprocess.run(["ip", "netns", "pids", space], check=False, capture_output=True, text=True).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
