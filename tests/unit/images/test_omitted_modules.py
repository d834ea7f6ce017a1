"""Nothing in an image imports the parts of the standard library and packages that it omits.

The build itself tries the imports of our own code (``tools/images/image_check.py``). These tests
check the packages: no function in them imports an omitted part of the standard library.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import requirement_sets
from tools.images import packages, runtime

#: Files that import an omitted module, and the reason why the image does not need them.
NOT_NEEDED = {
    "cffi/_shimmed_dist_utils.py": "compiles C code",
    "websocket/_wsdump.py": "is a command for a terminal",
}
#: First name of an import: most files are decided by it, without being parsed.
_FIRST_NAME = re.compile(rb"(?:\bimport|\bfrom|,)\s+(\w+)")
package_left_out = partial(packages.left_out, loaded=())


def is_left_out(path: str, left_out: Callable[[str], bool]) -> bool:
    """Return whether a file, or a folder that contains it, is left out."""
    parts = path.split("/")
    return any(left_out("/".join(parts[: number + 1])) for number in range(len(parts)))


def missing_modules() -> set[str]:
    """Return the omitted modules of the standard library by import name."""
    found = set()
    for folder in runtime.standard_library():
        for path in folder.rglob("*.py"):
            below = path.relative_to(folder).as_posix()
            if is_left_out(below, runtime.left_out) and "-packages/" not in below:
                found.add(below.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for path in (folder / "lib-dynload").glob("*.so"):
            if runtime.left_out(f"lib-dynload/{path.name}"):
                found.add(path.name.partition(".")[0])
    return found


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the files of the packages that images contain."""
    sets = (requirement_sets.SETS[name] for name in ("operator.txt", "broker.txt"))
    roots = [Requirement(root) for roots in sets for root in roots]
    for name in sorted(requirement_sets._closure(roots)):
        for file in metadata.files(name) or ():
            path = file.as_posix()
            if path.endswith(".py") and not is_left_out(path, package_left_out):
                yield path, Path(str(file.locate()))


def imported(path: Path) -> Iterator[str]:
    """Yield all imports of a file, including those in functions."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_package_imports_what_is_left_out_of_the_standard_library() -> None:
    missing = missing_modules()
    # Debian has tkinter in a package of its own.
    assert {"ensurepip", "_sqlite3"} <= missing
    files = dict(sources())
    assert len(files) > 1000
    # Parsing is slow, so that most files are excluded by the first names of their imports.
    first = {name.partition(".")[0].encode() for name in missing}
    found = {
        (path, name)
        for path, source in files.items()
        if path not in NOT_NEEDED and first & set(_FIRST_NAME.findall(source.read_bytes()))
        for name in imported(source)
        if name in missing
    }
    assert found == set()


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("asyncio/base_events.py", False),
        ("encodings/idna.py", False),
        ("unittest/mock.py", False),
        ("unittest/test/test_case.py", True),
        ("test/support/__init__.py", True),
        ("config-3.11-x86_64-linux-gnu/libpython3.11.a", True),
        ("site-packages/pip/__init__.py", True),
        ("lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", False),
        ("lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", True),
        ("lib-dynload/_testcapi.cpython-311-x86_64-linux-gnu.so", True),
    ],
)
def test_omitted_parts_of_the_standard_library(path: str, left_out: bool) -> None:
    assert is_left_out(path, runtime.left_out) is left_out


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("kubernetes/client/api/core_v1_api.py", True),
        ("kubernetes/aio/client/api/core_v1_api.py", True),
        ("kubernetes/aio/client/models/v1_pod.py", True),
        ("kubernetes/aio/client/models/__init__.py", False),
        ("kubernetes/aio/client/api_client.py", False),
        ("websocket/tests/test_app.py", True),
        ("yarl/_quoting_c.pyx", True),
        ("tidemark_operator/controller/placement.py", False),
        ("uvloop-0.22.1.dist-info/licenses/LICENSE-MIT", False),
    ],
)
def test_omitted_parts_of_packages(path: str, left_out: bool) -> None:
    assert is_left_out(path, package_left_out) is left_out


def test_generated_code_that_the_program_loads_stays() -> None:
    path = "kubernetes/client/models/v1_object_meta.py"
    assert packages.left_out(path, ())
    assert not packages.left_out(path, {path})
