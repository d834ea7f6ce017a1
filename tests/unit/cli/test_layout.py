"""Folder of a local cluster: content that others may have written is not trusted."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import typer

from tidemark_cli.common import open_cluster
from tidemark_devcluster import processes, settings
from tidemark_devcluster.layout import Layout, LayoutError, read_json, write_json

RECORD = {"name": "operator", "pid": os.getpid(), "start_ticks": 5, "ready": {}}
SETTINGS = {
    "cluster": "tidemark",
    "namespace": "default",
    "tier": "directory",
    "kubeconfig": "",
    "control_port": 9000,
    "metrics_port": 9001,
}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "cluster")
    made.create()
    return made


def test_existing_folders_become_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    layout.root.mkdir(mode=0o755)
    layout.run.mkdir(mode=0o777)
    layout.create()
    for folder in (layout.root, layout.run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_symbolic_link_is_refused_as_a_folder(tmp_path: Path, layout: Layout) -> None:
    layout.run.rmdir()
    (tmp_path / "elsewhere").mkdir()
    layout.run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LayoutError, match="not a folder of yours"):
        layout.create()


@pytest.mark.parametrize(
    "text", ["", "garbage", "[]", "5", '"x"', "[" * 100_000, "{", '{"a": 1} x', "\x00"]
)
def test_garbage_is_an_error_in_one_line(layout: Layout, text: str) -> None:
    for path in (layout.settings, layout.run / "operator.json"):
        path.write_text(text)
        path.chmod(0o600)
    with pytest.raises(LayoutError, match="remove it") as caught:
        settings.load(layout)
    assert "\n" not in str(caught.value)
    with pytest.raises(LayoutError, match="remove it"):
        processes.running(layout)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"pid": 1},
        {"pid": -1},
        {"pid": True},
        {"pid": "7"},
        {"start_ticks": None},
        {"ready": []},
        {"more": 1},
    ],
    ids=str,
)
def test_modified_process_record_is_refused(layout: Layout, change: dict[str, Any]) -> None:
    write_json(layout.run / "operator.json", RECORD | change)
    with pytest.raises(LayoutError, match="not a process record"):
        processes.find(layout, "operator")


@pytest.mark.parametrize(
    "change",
    [{"tier": "ftp"}, {"control_port": 0}, {"metrics_port": "1"}, {"cluster": 5}, {"x": 1}],
)
def test_modified_settings_are_refused(layout: Layout, change: dict[str, Any]) -> None:
    write_json(layout.settings, SETTINGS | change)
    with pytest.raises(LayoutError, match="was not written by `tidemark up`"):
        settings.load(layout)


def test_file_that_others_may_write_is_not_read(layout: Layout) -> None:
    write_json(layout.settings, SETTINGS)
    assert settings.load(layout) is not None
    layout.settings.chmod(0o666)
    with pytest.raises(LayoutError, match="other users may write"):
        settings.load(layout)


def test_a_link_or_a_pipe_is_not_read(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps(SETTINGS))
    layout.settings.symlink_to(tmp_path / "real.json")
    with pytest.raises(LayoutError, match="cannot be read"):
        read_json(layout.settings)
    os.mkfifo(layout.run / "operator.json", 0o600)
    with pytest.raises(LayoutError, match="is not a regular file"):
        read_json(layout.run / "operator.json")


def test_a_command_prints_the_error_and_ends(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(layout.settings, SETTINGS)
    write_json(layout.run / "operator.json", RECORD | {"pid": 1})
    with pytest.raises(typer.Exit):
        open_cluster(layout.root)
    assert "not a process record" in capsys.readouterr().err.replace("\n", " ")


def test_another_process_of_that_id_is_left_alone(layout: Layout) -> None:
    """The kernel has reused the id since the record was written."""
    write_json(layout.run / "operator.json", RECORD)
    # This process has the recorded id, but another start time.
    assert processes.find(layout, "operator") is None
