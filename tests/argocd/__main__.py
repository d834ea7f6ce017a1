"""``make e2e-argocd``: build Argo CD if necessary, and run the tests in this folder.

They run in an isolated network namespace, because the controller's metrics cannot be bound to
loopback.
"""

import fcntl
import os
import shutil
import socket
import struct
import sys
from pathlib import Path

import pytest

from tests.argocd.program import ensure_argocd, find_redis
from tests.suites.packages import Missing
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import ensure_controlplane

TESTS = Path(__file__).with_name("documented_examples.py")
_INSIDE = "--inside"
_NEW = ("unshare", "--map-root-user", "--net")
#: Linux's SIOCSIFFLAGS, and IFF_UP | IFF_RUNNING.
_SET_FLAGS, _UP = 0x8914, 0x41


def main(arguments: list[str]) -> int:
    """The exit status of pytest, which is given ``arguments``; 1 where something is missing."""
    if _INSIDE in arguments:
        _raise_loopback()
        given = [argument for argument in arguments if argument != _INSIDE]
        return pytest.main(["-p", "no:cacheprovider", "-v", str(TESTS), *given])
    try:
        ensure_argocd()
        ensure_controlplane()
        find_redis()
    except (Missing, ToolchainError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    # The suite runs again in a network namespace of its own, so that fixed ports are free.
    unshare = shutil.which(_NEW[0])
    if unshare is None:
        sys.stderr.write("Argo CD is tried in a network of its own: install unshare (util-linux)\n")
        return 1
    inside = [sys.executable, "-m", "tests.argocd", _INSIDE, *arguments]
    os.execv(unshare, [*_NEW, *inside])
    return 1


def _raise_loopback() -> None:
    """A new network has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
