"""A broker whose kernel may refuse: ``python faulty_broker.py FOLDER --config F``.

While ``FOLDER/fdatasync`` exists, every fdatasync of the process fails with an I/O error.
"""

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark_broker.main import main

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def install(folder: Path) -> None:
    """Put the fault before the system call."""
    real = os.fdatasync

    def fdatasync(fd: "FileDescriptorLike") -> None:
        if (folder / "fdatasync").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    os.fdatasync = fdatasync


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    raise SystemExit(main(sys.argv[2:]))
