"""Without debug information, a compiled module is smaller and works as before."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.images.elf import files, strip_all, without_debug_information

LOAD = """
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
name, path = sys.argv[1:]
spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
spec.loader.exec_module(module_from_spec(spec))
"""


def compiled(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


@pytest.mark.parametrize("name", ["uvloop.loop", "yaml._yaml", "multidict._multidict"])
def test_stripped_module_can_be_loaded(name: str, tmp_path: Path) -> None:
    before = compiled(name).read_bytes()
    after = without_debug_information(before)
    if b".debug_info" not in before:
        pytest.skip("this release has none")
    assert len(after) < len(before) / 2
    assert without_debug_information(after) == after
    module = tmp_path / compiled(name).name
    module.write_bytes(after)
    subprocess.run([sys.executable, "-c", LOAD, name, module], check=True, timeout=60)


def test_other_and_incomplete_files_stay_unchanged() -> None:
    complete = compiled("uvloop.loop").read_bytes()
    for data in (
        b"",
        b"#!/bin/sh\n",
        complete[:20],
        complete[:5000],
        b"\x7fELF\x01\x01" + complete[6:],
    ):
        assert without_debug_information(data) == data


def test_each_module_is_stripped_once(tmp_path: Path) -> None:
    module = tmp_path / "a" / "loop.so"
    module.parent.mkdir()
    module.write_bytes(compiled("uvloop.loop").read_bytes())
    (tmp_path / "link.so").symlink_to(module)
    (tmp_path / "text.so").write_text("no")
    assert list(files(tmp_path)) == [module]
    strip_all(tmp_path)
    assert module.read_bytes() == without_debug_information(compiled("uvloop.loop").read_bytes())
    assert (tmp_path / "link.so").is_symlink()
