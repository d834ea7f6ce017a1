"""Runtime of a Python program, and nothing else: the folder that becomes ``/`` of its image.

It has Python and its standard library, the shared libraries that the dynamic linker finds for them
and for the program's packages, the certificates of authorities, and a user. There is no shell and
no package manager. A missing library is an error at build time.
"""

import ctypes
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from tools.images import elf
from tools.images.tree import TEMPORARY, Tree

USER = 65532
#: Search path for programs in the image's settings.
SEARCHED = "/usr/local/bin:/usr/bin"
#: Of the standard library, below its folder: what is for a window, a terminal or a database of its
#: own, installs packages, translates Python 2 or builds programs in C; tests.
LEFT_OUT = (
    *("__pycache__", "*/__pycache__", "site-packages", "dist-packages", "config-*"),
    *("ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "turtle.py", "distutils"),
    *("test", "*/test", "*/tests", "curses", "dbm", "sqlite3", "pydoc_data"),
)
#: Of its compiled modules, as they are imported.
LEFT_OUT_COMPILED = (
    *("_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_sqlite3", "_tkinter", "nis"),
    *("ossaudiodev", "readline", "_test*", "_xx*", "xx*", "_ctypes_test"),
)
#: Loaded by name while a program runs: the C library's resolver, and what ends its threads.
LOADED_BY_NAME = ("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1")
#: Where the C library finds libraries, and how names are resolved, where the image says so.
_SETTINGS = (Path("/etc/ld.so.cache"), Path("/etc/nsswitch.conf"))
_PASSWD = """\
root:x:0:0:root:/root:/usr/sbin/nologin
tidemark:x:{user}:{user}:tidemark:/tmp:/usr/sbin/nologin
"""
_GROUP = """\
root:x:0:
tidemark:x:{user}:
"""


class NotInBase(Exception):
    """The base image lacks something; the message names it."""


def standard_library() -> set[Path]:
    """Return the folder of the standard library; some systems have a second one for compiled
    modules.
    """
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    return {Path(sysconfig.get_path(name, vars=base)) for name in ("stdlib", "platstdlib")}


def left_out(path: str) -> bool:
    """Return whether a file of the standard library is left out, by its path below that folder."""
    name = path.rpartition("/")[2]
    if path.startswith("lib-dynload/"):
        return any(fnmatch(name.partition(".")[0], item) for item in LEFT_OUT_COMPILED)
    return any(fnmatch(path, item) for item in LEFT_OUT)


def add_runtime(tree: Tree, packages: Path) -> None:
    """Add the runtime for the program with these packages. Raises NotInBase."""
    interpreter = shutil.which("python3")
    if interpreter is None:
        raise NotInBase("there is no python3")
    tree.add(Path(interpreter))
    for folder in sorted(standard_library()):
        tree.add(folder, left_out)
    python = [Path("/", path.relative_to(tree.root)) for path in elf.files(tree.root)]
    for path in sorted(libraries([*python, *elf.files(packages)], packages)):
        tree.add(path)
    _add_authorities(tree)
    for path in filter(Path.exists, _SETTINGS):
        tree.add(path)
    tree.write(Path("/etc/passwd"), _PASSWD.format(user=USER))
    tree.write(Path("/etc/group"), _GROUP.format(user=USER))
    tree.folder(Path("/tmp"), TEMPORARY)


def libraries(programs: Iterable[Path], packages: Path) -> set[Path]:
    """Return the shared libraries that ``programs`` need, directly or not, without those of
    ``packages``.

    They are found as by the dynamic linker. Raises NotInBase.
    """
    by_name = _loaded_by_name()
    # Of several files each is named, ended by a colon, before its libraries.
    command = ["ldd", *map(str, programs), *by_name]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    found, program = set(), ""
    for line in listed.stdout.splitlines():
        if not line.startswith("\t"):
            program = line.rstrip(":")
        elif line.endswith("not found"):
            raise NotInBase(f"{line.split()[0]} is not there, which {program} needs")
        else:
            found |= {Path(word) for word in line.split() if word.startswith("/")}
    if not found:
        raise NotInBase(f"ldd names no library: {listed.stderr.strip()}")
    found |= set(map(Path, by_name))
    return {path for path in found if not path.is_relative_to(packages)}


def _loaded_by_name() -> list[str]:
    """Return the paths of the libraries that exist: newer C libraries contain the resolver."""
    for name in LOADED_BY_NAME:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
    maps = Path("/proc/self/maps").read_text("utf-8")
    mapped = {line.rpartition(" ")[2] for line in maps.splitlines()}
    return sorted(path for path in mapped if path.rpartition("/")[2] in LOADED_BY_NAME)


def _add_authorities(tree: Tree) -> None:
    """Add the certificates and settings that OpenSSL reads."""
    paths = ssl.get_default_verify_paths()
    folder = Path(paths.openssl_capath)
    if not any(folder.glob("*")):
        raise NotInBase(f"there are no certificates of authorities in {folder}")
    for path in (folder, Path(paths.openssl_cafile), folder.with_name("openssl.cnf")):
        if path.exists():
            tree.add(path)
