"""A missing module is noticed when the program is tried, and not when it runs."""

from pathlib import Path

import pytest

from tools.images.image_check import ImageCheckResult, TrialFailed

PROGRAM = {
    "program/__init__.py": "",
    "program/__main__.py": "raise SystemExit('it runs')",
    "program/server.py": "import json\nfrom needed import thing\n",
    "program/rare.py": "def rarely():\n    from needed import part\n    import never.there\n",
    "needed/__init__.py": "thing = 1",
    "needed/part.py": "",
    "needed/other.py": "",
}


def program(folder: Path, without: str = "") -> Path:
    for path, text in PROGRAM.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path != without:
            (folder / path).write_text(text)
    return folder


def test_equal_files_have_equal_results(tmp_path: Path) -> None:
    one = ImageCheckResult.here(program(tmp_path / "one"), ["program"])
    assert one.differences(ImageCheckResult.here(program(tmp_path / "other"), ["program"])) == []
    assert one.imports["program.server"] == ""
    assert one.imports["never.there"].startswith("ModuleNotFoundError")
    assert one.surroundings["encoding"] == "utf-8"
    assert "needed/part.py" in one.loaded
    assert "needed/other.py" not in one.loaded


def test_import_within_a_function_is_checked(tmp_path: Path) -> None:
    before = ImageCheckResult.here(program(tmp_path / "one"), ["program"])
    after = ImageCheckResult.here(
        program(tmp_path / "other", without="needed/part.py"), ["program"]
    )
    (line,) = before.differences(after)
    assert line.startswith("needed:part: ModuleNotFoundError")


def test_a_program_that_is_not_there_has_not_been_tried(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match="nothing_of_it"):
        ImageCheckResult.here(tmp_path, ["nothing_of_it"])
