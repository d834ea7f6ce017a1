"""Image layers are deleted once they are too large, with whatever a killed build left mounted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.pods.buildah import forget_layers
from e2e.pods.commands import CommandFailed, run

#: In addition to the data of the mount below.
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
    # The mount alone exceeds the limit, but it is not counted.
    (root / "large").write_bytes(bytes((MAX_MB + 1) << 20))
    yield tmp_path / "store"
    if root.is_mount():
        run(["umount", root])


def test_small_store_of_layers_is_kept(mounted: Path) -> None:
    (mounted / "layer").write_bytes(b"of use")
    forget_layers(mounted, MAX_MB)
    assert (mounted / "layer").exists()
    # Mounts are removed even if the layers stay.
    assert str(mounted) not in Path("/proc/self/mountinfo").read_text()


def test_large_store_is_deleted_with_its_mounts(mounted: Path) -> None:
    (mounted / "layer").write_bytes(bytes((MAX_MB + 1) << 20))
    forget_layers(mounted, MAX_MB)
    assert not mounted.exists()


def test_missing_store_is_no_error(tmp_path: Path) -> None:
    forget_layers(tmp_path / "store", MAX_MB)
