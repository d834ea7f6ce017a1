"""Shared libraries are those that the dynamic linker finds; a missing one stops the build."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from tools.images.runtime import NotInBase, libraries, standard_library

pytestmark = pytest.mark.skipif(not shutil.which("ldd"), reason="there is no ldd")


def modules() -> list[Path]:
    folder = next(iter(standard_library())) / "lib-dynload"
    return sorted(folder.glob("_hashlib*.so")) + sorted(folder.glob("_ssl*.so"))


def test_libraries_include_indirect_and_dynamically_loaded_ones(tmp_path: Path) -> None:
    found = libraries(modules(), tmp_path)
    names = {path.name for path in found}
    assert {"libc.so.6", "libcrypto.so.3", "libgcc_s.so.1"} <= names
    assert any(name.startswith("ld-linux") for name in names)
    assert all(path.is_file() for path in found)


def test_libraries_of_packages_are_left_out() -> None:
    found = libraries(modules(), Path("/lib"))
    assert not any(path.is_relative_to("/lib") for path in found)


def test_a_library_that_is_not_there_stops_the_build_by_its_name(tmp_path: Path) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    broken = tmp_path / f"broken{suffix}"
    # The new name has the same length, and no library has it.
    broken.write_bytes(modules()[0].read_bytes().replace(b"libc.so.6\0", b"libq.so.6\0"))
    with pytest.raises(NotInBase, match=r"libq\.so\.6 is not there, which .*broken"):
        libraries([*modules(), broken], tmp_path)
