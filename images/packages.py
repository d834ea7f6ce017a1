"""Which files of the installed packages a program needs where it runs.

What nobody loads there stays behind: tests, sources of compiled modules, types for checkers,
commands, and of code that was generated, each file that no import of the program loads. Licences
and the lists of what a package is made of stay.
"""

from collections.abc import Collection
from fnmatch import fnmatch

LEFT_OUT = (
    *("*.c", "*.h", "*.pxd", "*.pyi", "*.pyx"),
    *("bin", "tests", "*/tests", "Crypto/SelfTest", "__pycache__", "*/__pycache__"),
)
#: Half of the operator's packages: a module for each kind and group of Kubernetes, found by name
#: when it is asked for. The operator writes paths and JSON itself.
GENERATED = ("kubernetes/*client/api/*_api.py", "kubernetes/*client/models/*[a-z0-9]_[a-z0-9]*.py")


def left_out(path: str, loaded: Collection[str]) -> bool:
    """Whether a file or folder is, by its path below that of the packages; ``loaded``: files that
    the program's imports have loaded, likewise."""
    if any(fnmatch(path, each) for each in LEFT_OUT):
        return True
    return path not in loaded and any(fnmatch(path, each) for each in GENERATED)
