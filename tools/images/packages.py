"""Selection of the files of installed packages that a program needs.

Left out are tests, sources of compiled modules, type stubs, commands, and of generated code each
file that no import of the program loads. Licences and the lists of a package's files stay.
"""

from collections.abc import Collection
from fnmatch import fnmatch

LEFT_OUT = (
    *("*.c", "*.h", "*.pxd", "*.pyi", "*.pyx"),
    *("bin", "tests", "*/tests", "Crypto/SelfTest", "__pycache__", "*/__pycache__"),
)
#: Half of the operator's packages: a module for each kind and group of Kubernetes, imported by name
#: on demand. The operator writes paths and JSON itself.
GENERATED = ("kubernetes/*client/api/*_api.py", "kubernetes/*client/models/*[a-z0-9]_[a-z0-9]*.py")


def left_out(path: str, loaded: Collection[str]) -> bool:
    """Return whether a file or folder is left out, by its path below the folder of the packages.

    ``loaded``: files that the program's imports have loaded, relative to the same folder."""
    if any(fnmatch(path, item) for item in LEFT_OUT):
        return True
    return path not in loaded and any(fnmatch(path, item) for item in GENERATED)
