"""Selection of Go, and its build environment. The Go commands are small scripts."""

from pathlib import Path

import pytest

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import ensure_minio
from tidemark_devcluster.toolchain.golang import Go, GoVersion, build_environment, find_go
from tidemark_devcluster.toolchain.progress import PlainProgress

REQUIRED = GoVersion(1, 26, 0)
PINNED = GoVersion(1, 26, 6)


def make_go(path: Path, version: str, *, keeps: str = "/var/go") -> Path:
    """Write a command that answers ``go version`` and ``go env NAME`` as Go does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit 0; fi\n'
        f'echo "{keeps}/$2"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def progress(capsys: pytest.CaptureFixture[str]) -> PlainProgress:
    import sys

    return PlainProgress(sys.stderr)


def test_the_machines_go_is_used_where_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: PlainProgress
) -> None:
    machine = make_go(tmp_path / "bin/go", "go1.26.2")
    monkeypatch.setenv("PATH", str(machine.parent))
    go = find_go(REQUIRED, tmp_path / "cache", progress)
    assert go == Go(machine, GoVersion(1, 26, 2), packaged=False)


@pytest.mark.parametrize("version", ["go1.25.9", "go1.26rc1", "nothing"])
def test_the_packaged_go_is_used_where_it_is_not(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: PlainProgress
) -> None:
    machine = make_go(tmp_path / "bin/go", version)
    packaged = make_go(tmp_path / f"cache/go/{PINNED}/go/bin/go", f"go{PINNED}")
    monkeypatch.setenv("PATH", str(machine.parent))
    assert find_go(REQUIRED, tmp_path / "cache", progress) == Go(packaged, PINNED, packaged=True)


def test_an_error_of_the_packaged_go_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: PlainProgress
) -> None:
    make_go(tmp_path / f"cache/go/{PINNED}/go/bin/go", "broken")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"install Go 1\.26\.0 or newer"):
        find_go(REQUIRED, tmp_path / "cache", progress)


def test_the_machines_caches_are_used_with_the_machines_go(tmp_path: Path) -> None:
    go = Go(make_go(tmp_path / "go", "go1.26.2"), GoVersion(1, 26, 2), packaged=False)
    # With the user's GOOS, the build would be for another system.
    environ = build_environment(go, tmp_path / "cache", {"GOOS": "plan9"}, tmp_path / "checkout")
    assert environ["GOCACHE"] == "/var/go/GOCACHE"
    assert environ["GOMODCACHE"] == "/var/go/GOMODCACHE"
    assert "GOFLAGS" not in environ
    assert "GOOS" not in environ
    assert environ["GOTOOLCHAIN"] == "local"
    assert environ["CGO_ENABLED"] == "0"


def test_caches_inside_the_checkout_are_moved(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    machine = make_go(tmp_path / "go", "go1.26.2", keeps=str(checkout / ".go"))
    go = Go(machine, GoVersion(1, 26, 2), packaged=False)
    given = {"GOFLAGS": "-p=1"}
    environ = build_environment(go, tmp_path / "cache", given, checkout)
    assert environ["GOCACHE"] == str(tmp_path / "cache/go-build")
    assert environ["GOMODCACHE"] == str(tmp_path / "cache/go-mod")
    assert environ["GOFLAGS"] == "-p=1 -modcacherw"


def test_packaged_go_has_its_caches_in_tidemarks_folder(tmp_path: Path) -> None:
    go = Go(tmp_path / "go", PINNED, packaged=True)
    given = {"GOMODCACHE": "/shared/modules", "GOROOT": "/old"}
    environ = build_environment(go, tmp_path / "cache", given, None)
    assert environ["GOCACHE"] == str(tmp_path / "cache/go-build")
    assert environ["GOMODCACHE"] == "/shared/modules"
    assert "GOROOT" not in environ


def test_a_named_minio_is_used_as_it_is(tmp_path: Path) -> None:
    named = make_go(tmp_path / "minio", "go1.26.2")
    assert ensure_minio(environ={"TIDEMARK_MINIO": str(named)}) == named
    with pytest.raises(ToolchainError, match="not an executable file"):
        ensure_minio(environ={"TIDEMARK_MINIO": str(tmp_path)})
    with pytest.raises(ToolchainError, match="not an executable file"):
        ensure_minio(environ={"TIDEMARK_MINIO": str(tmp_path / "absent")})
