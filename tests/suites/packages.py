"""Suites and what they need, from the ordinary clients of the package registries, kept in the
user's cache folder.

Each thing is made once for what pins it (a module's ``go.sum``, a hash, a lock file, a pom) and
appears whole or not at all; one process makes it at a time.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import checkout
from tidemark_devcluster.toolchain.cache import build_key, locked, read_sources, user_cache
from tidemark_devcluster.toolchain.golang import build_environment, find_go, required_go
from tidemark_devcluster.toolchain.progress import default_progress

MODULES = Path(__file__).with_name("modules")
_SAID_BYTES = 4000


class Missing(RuntimeError):
    """A requirement of a suite is missing and cannot be installed; the message names it."""


def kept(name: str, pinned_by: Mapping[str, bytes], make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` filled for these very bytes, perhaps long ago."""
    # The key covers everything that pins the content, so a changed pin makes another folder.
    folder = user_cache() / "suites" / f"{name}-{build_key([name], pinned_by)}"
    lock = user_cache() / "locks" / f"{folder.name}.lock"
    with locked(lock, lambda: print(f"waiting: {name} is being made", flush=True)):
        if not folder.exists():
            print(f"getting {name} into {folder}", flush=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Made beside its final place and renamed, so a folder is complete or missing.
            with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as temporary:
                made = Path(temporary) / "made"
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Extract a tar archive into a folder. Raises :class:`Missing`."""
    # Python before 3.11.4 has no extraction filter. tar refuses members outside of the folder.
    command("tar", "-xf", archive, folder=folder)


def command(*arguments: str | Path, folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """Its output. Raises :class:`Missing` where there is no such program, or with what it said."""
    program = str(arguments[0])
    if shutil.which(program) is None and not (folder / program).exists():
        raise Missing(f"{program} is not on the PATH")
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-_SAID_BYTES:]
        raise Missing(f"{' '.join(map(str, arguments))} failed:\n{said}")
    return done.stdout


# ---------------------------------------------------------------- Go


def go_tests(module: str, package: str, *, tags: Sequence[str] = ()) -> tuple[Path, Path]:
    """(the compiled tests of a package that a module of ours pins, the folder of its sources).
    Raises :class:`Missing`."""
    sources = read_sources(MODULES / module)
    program = kept(
        f"{module}-tests",
        {**sources, "tags": ",".join(tags).encode()},
        lambda made: _go(
            module, "test", "-c", f"-tags={','.join(tags)}", "-o", str(made / "tests"), package
        ),
    )
    where = _go(module, "list", "-f", "{{.Dir}}", package).strip()
    return program / "tests", Path(where)


def go_program(folder: Path, package: str = ".") -> Path:
    """A program of a Go module of ours, built once. Raises :class:`Missing`."""
    name = package.rpartition("/")[2].strip(".") or folder.name
    made = kept(
        f"{name}-program",
        {**read_sources(folder), "package": package.encode()},
        lambda made: _go(folder, "build", "-o", str(made / name), package),
    )
    return made / name


def go_module(module: str, path: str) -> Path:
    """The folder of the sources of a module that a module of ours pins. Raises
    :class:`Missing`."""
    _go(module, "mod", "download", path)
    return Path(_go(module, "list", "-m", "-f", "{{.Dir}}", path).strip())


def _go(module: str | Path, *arguments: str) -> str:
    folder = MODULES / module
    # The module names the Go release that it needs, which may be newer than the machine's.
    needs = required_go((folder / "go.mod").read_text("utf-8"))
    try:
        go = find_go(needs, user_cache(), default_progress())
        environ = build_environment(go, user_cache(), os.environ, checkout())
    except ToolchainError as error:
        raise Missing(str(error)) from error
    return command(go.executable, *arguments, folder=folder, environ=environ)


# ---------------------------------------------------------------- Python, npm, Rust, Maven


def sdist(requirement: str, sha256: str) -> Path:
    """The folder of a source distribution (``name==version``), unpacked. Raises
    :class:`Missing`."""
    name = requirement.replace("==", "-")

    def make(made: Path) -> None:
        # pip checks the hash and unpacks nothing by itself.
        wanted = made / "requirements.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
        command(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", wanted, "-d", made),
            folder=made,
        )
        (archive,) = made.glob("*.tar.gz")
        unpack(archive, made)
        archive.unlink()

    folder = kept(name, {"sha256": sha256.encode()}, make)
    return next(path for path in folder.iterdir() if path.is_dir())


def wheels(requirements: Path) -> Path:
    """A folder to import from, with what a file of requirements names, each by its hashes. Raises
    :class:`Missing`."""
    folder = kept(
        f"{requirements.parent.name}-packages",
        {"requirements": requirements.read_bytes()},
        lambda made: command(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", requirements),
            *("--target", made / "packages"),
            folder=made,
        ),
    )
    return folder / "packages"


def npm_folder(folder: Path) -> Path:
    """A folder with the sources of ``folder`` and the packages that its lock file names."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    # Scripts of packages are not run: no test needs them.
    def make(made: Path) -> None:
        for name, content in files.items():
            (made / name).write_bytes(content)
        command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=made)

    return kept(f"{folder.parent.name}-{folder.name}", files, make)


def npm_package(name: str, version: str, integrity: str, build: Callable[[Path], object]) -> Path:
    """The folder where a published package was unpacked (as ``package``) and ``build`` was run.
    ``integrity``: as lock files have it. Raises :class:`Missing`."""

    def make(made: Path) -> None:
        command("npm", "pack", "--ignore-scripts", f"{name}@{version}", folder=made)
        (archive,) = made.glob("*.tgz")
        # npm pack checks no lock file, so the integrity is compared here.
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != integrity:
            raise Missing(f"{name} {version} is not what it was: sha512-{digest}")
        unpack(archive, made)
        archive.unlink()
        build(made)

    kind = name.rpartition("/")[2]
    return kept(f"{kind}-{version}", {"integrity": integrity.encode()}, make)


def crate(name: str, version: str, sha256: str) -> Path:
    """The folder of a published crate, its own lock file in it. Raises :class:`Missing`."""

    def make(made: Path) -> None:
        # Cargo fetches dependencies only, so an empty package depends on the crate.
        manifest = '[package]\nname = "suite"\nversion = "0.0.0"\nedition = "2021"\n\n'
        manifest += f'[dependencies]\n{name} = "={version}"\n'
        (made / "Cargo.toml").write_text(manifest, encoding="utf-8")
        (made / "src").mkdir()
        (made / "src" / "lib.rs").touch()
        command("cargo", "fetch", "--quiet", folder=made)
        locked_packages = tomllib.loads((made / "Cargo.lock").read_text("utf-8"))["package"]
        (found,) = (
            locked_package for locked_package in locked_packages if locked_package["name"] == name
        )
        if found["checksum"] != sha256:
            raise Missing(f"{name} {version} is not what it was: {found['checksum']}")
        home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        source = next((home / "registry" / "src").glob(f"*/{name}-{version}"))
        shutil.copytree(source, made / "crate")

    return kept(f"{name}-{version}", {"sha256": sha256.encode()}, make) / "crate"


def maven_jars(pom: Path) -> Path:
    """A folder with the jars that a pom names. Raises :class:`Missing`."""
    return kept(
        pom.parent.name,
        {"pom": pom.read_bytes()},
        lambda made: (
            command(
                *("mvn", "-q", "-f", pom, "dependency:copy-dependencies"),
                f"-DoutputDirectory={made}",
                folder=made,
            )
            and None
        ),
    )
