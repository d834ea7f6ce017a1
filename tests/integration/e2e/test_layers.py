"""Layers of images are forgotten once they are too many, whatever a killed build left mounted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.pods.buildah import forget_layers
from e2e.pods.commands import CommandFailed, run

#: Beside what the mount below has.
MAX_MB = 1


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A store of layers with the root of a container whose build was killed."""
    root = tmp_path / "store" / "overlay" / "1f" / "merged"
    root.mkdir(parents=True)
    try:
        run(["mount", "-t", "tmpfs", "layer", root])
    except CommandFailed as error:
        pytest.skip(f"this machine allows no mounts, so nothing is left mounted either: {error}")
    (root / "large").write_bytes(bytes((MAX_MB + 1) << 20))
    yield tmp_path / "store"
    if root.is_mount():
        run(["umount", root])


def test_few_layers_stay(mounted: Path) -> None:
    (mounted / "layer").write_bytes(b"of use")
    forget_layers(mounted, MAX_MB)
    assert (mounted / "layer").exists()
    assert str(mounted) not in Path("/proc/self/mountinfo").read_text()


def test_many_layers_go_with_what_is_mounted(mounted: Path) -> None:
    (mounted / "layer").write_bytes(bytes((MAX_MB + 1) << 20))
    forget_layers(mounted, MAX_MB)
    assert not mounted.exists()


def test_no_layers_yet(tmp_path: Path) -> None:
    forget_layers(tmp_path / "store", MAX_MB)
