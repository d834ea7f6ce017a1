"""Images where no registry can be reached: buildah, on a base made from Debian's packages.

Python alone is what Spark and the client run on; the same with pip is for the stage that installs;
and for Spark there is Java in a folder. What a run has built is kept for the next one: layers until
they are too many, and of each image the archive that came last, for as long as what it is made of
stays the same.
"""

import configparser
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pip

from e2e.pods import jre
from e2e.pods.commands import run
from e2e.pods.images import BUILD_TIMEOUT_S, SPARK
from e2e.pods.progress import Progress

BASE_MAX_AGE_S = 7 * 24 * 3600
#: Of the cache: some ten builds of all images.
LAYERS_MAX_MB = 10_000
PIP_SETTINGS = Path("/etc/pip.conf")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
#: Where a build finds these authorities.
LENT = "/lent"


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah with a store of its own: ``cache`` keeps bases and layers from run to run, ``state``
    goes, and with it the layers of a store that is in there."""

    cache: Path
    state: Path
    runtime: str = "localhost/runtime"
    base: str = "localhost/base"
    java: str = "localhost/java"
    #: More of buildah's, for the images of ``build``.
    options: tuple[str, ...] = ()
    #: Where layers are; None: in the cache.
    store: Path | None = None

    def prepare(self, own: Collection[str], progress: Progress) -> None:
        """Make the images that those of ``own`` begin with. Raises CommandFailed."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(parents=True, exist_ok=True)
        # Before the build, when none of the layers is in use.
        forget_layers(self.cache / "store", LAYERS_MAX_MB)
        # Images are local, so there is no signature to check.
        policy = {"default": [{"type": "insecureAcceptAnything"}]}
        (self.state / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
        self._lend_pip_settings()
        tar = self.cache / f"base-{_codename()}.tar"
        if _old(tar):
            with progress.step(f"making a base of Debian {_codename()} with Python"):
                _debian(tar)
        with progress.step("building the bases"), tempfile.TemporaryDirectory() as folder:
            context = Path(folder)
            # The base is a tar file that Debian's tools made, in two stages: plain Python, and
            # Python with pip.
            _lend(tar, context / "base.tar")
            self._bud(self.runtime, self._written("FROM scratch\nADD base.tar /\n"), context)
            (context / "base.tar").unlink()
            shutil.copytree(Path(pip.__file__).parent, context / "pip")
            text = f"FROM {self.runtime}\nCOPY pip /usr/lib/python3/dist-packages/pip\n"
            self._bud(self.base, self._written(text), context)
        if SPARK in own:
            self._prepare_java(progress)

    def _prepare_java(self, progress: Progress) -> None:
        context = self.cache / f"java-{_codename()}"
        if _old(context / "Dockerfile"):
            with progress.step(f"taking Java from Debian {_codename()}"):
                shutil.rmtree(context, ignore_errors=True)
                jre.unpack(context / "openjdk")
                text = "FROM scratch\nCOPY openjdk /opt/java/openjdk\n"
                (context / "Dockerfile").write_text(text, encoding="utf-8")
        with progress.step("building an image of Java"):
            self._bud(self.java, context / "Dockerfile", context)

    def build(self, name: str, dockerfile: Path, context: Path, archive: Path) -> None:
        if self.store:
            self._make(name, dockerfile, context, archive)
            return
        short = archive.stem
        bases = (self.cache / f"base-{_codename()}.tar", self.cache / f"java-{_codename()}")
        made_of = fingerprint(dockerfile, context, bases)
        # An image whose inputs have not changed is used from the last run.
        kept = self.cache / "archives" / f"{short}-{made_of}.tar"
        if not kept.exists():
            for old in kept.parent.glob(f"{short}-*"):
                old.unlink()
            kept.parent.mkdir(exist_ok=True)
            # Written under another name first, so that an interrupted build leaves no usable
            # archive.
            part = kept.with_suffix(".part")
            self._make(name, dockerfile, context, part)
            part.replace(kept)
        # Another run may replace what is kept while this one gives it to its nodes.
        _lend(kept, archive)

    def _make(self, name: str, dockerfile: Path, context: Path, archive: Path) -> None:
        stages = {"BASE": self.base, "RUNTIME": self.runtime, "JAVA": self.java}
        arguments = [f"--build-arg={name}={image}" for name, image in stages.items()]
        # The build runs on the host's network with the host's trusted authorities, as the machine
        # itself does.
        arguments += [f"--volume={path}:{inside}:ro" for path, inside in self._lent().items()]
        arguments += ["--isolation=chroot", "--network=host", *self.options]
        self._bud(name, dockerfile, context, *arguments)
        archive.unlink(missing_ok=True)
        self._buildah("push", *self._policy(), name, f"docker-archive:{archive}:{name}")

    def _lend_pip_settings(self) -> None:
        """The machine's own way to the package registry: where it is, and whom to trust."""
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(PIP_SETTINGS, encoding="utf-8")
        if AUTHORITIES.exists():
            settings.read_dict({"global": {"cert": f"{LENT}/{AUTHORITIES.name}"}})
        with (self.state / "pip.conf").open("w", encoding="utf-8") as file:
            settings.write(file)

    def _lent(self) -> dict[Path, str]:
        """Files of the host that a build uses.

        The base's authorities are left out, for those go into images.
        """
        authorities = {AUTHORITIES.parent: LENT} if AUTHORITIES.exists() else {}
        return {self.state / "pip.conf": str(PIP_SETTINGS), **authorities}

    def _bud(self, name: str, dockerfile: Path, context: Path, *arguments: str) -> None:
        words = ("bud", *self._policy(), "--layers", *arguments)
        self._buildah(*words, "--file", dockerfile, "--tag", name, context)

    def _written(self, text: str) -> Path:
        path = self.state / "Dockerfile"
        path.write_text(text, encoding="utf-8")
        return path

    def _policy(self) -> tuple[str | Path, ...]:
        return "--signature-policy", self.state / "policy.json"

    def _buildah(self, verb: str, *arguments: str | Path) -> str:
        root = self.store or self.cache / "store"
        store = ["--root", root, "--runroot", self.state / "run"]
        command = ["buildah", *store, "--storage-driver", "overlay", verb, *arguments]
        return run(command, timeout_s=BUILD_TIMEOUT_S)


def forget_layers(store: Path, max_mb: int) -> None:
    """Remove all layers once their total size exceeds ``max_mb``.

    Buildah does not say which are still in use.
    """
    if store.exists():
        _unmount(store)
        if int(run(["du", "-s", "-m", store]).split()[0]) > max_mb:
            shutil.rmtree(store)


def fingerprint(dockerfile: Path, context: Path, bases: Iterable[Path]) -> str:
    """Fingerprint of everything that determines an image: packages are pinned, and bases are
    identified by their creation time, where they exist.
    """
    # This file determines how an image is built, so its changes count.
    found = hashlib.sha256(Path(__file__).read_bytes() + dockerfile.read_bytes())
    for base in bases:
        if base.exists():
            found.update(f"{base.name} {base.stat().st_mtime_ns}".encode())
    for path in files_of(context):
        found.update(f"{path.relative_to(context)} {path.stat().st_mode}".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:32]


def files_of(context: Path) -> list[Path]:
    """Return the files of a context that its ``.dockerignore`` lets through, or all files if there
    is none.

    The ignore file may only contain allowed files and folders, and compiled code.
    """
    ignored = context / ".dockerignore"
    lines = ignored.read_text("utf-8").splitlines() if ignored.exists() else ["!."]
    roots = [context / line.removeprefix("!") for line in lines if line.startswith("!")]
    found = {path for root in roots for path in (root, *root.rglob("*")) if path.is_file()}
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _unmount(folder: Path) -> None:
    """Unmount what a killed build left mounted. No other build runs at this time."""
    for mounted in mounts_below(folder, Path("/proc/self/mountinfo").read_text("utf-8")):
        run(["umount", mounted])


def mounts_below(folder: Path, mountinfo: str) -> list[Path]:
    """The last one first, as they go; ``mountinfo``: see proc_pid_mountinfo(5)."""
    escaped = [line.split()[4] for line in mountinfo.splitlines()]
    found = [Path(re.sub(r"\\([0-7]{3})", lambda c: chr(int(c[1], 8)), item)) for item in escaped]
    return [path for path in reversed(found) if path.is_relative_to(folder)]


def _old(path: Path) -> bool:
    """Whether it is to be made (again): a base is to have Debian's latest fixes."""
    return not path.exists() or time.time() - path.stat().st_mtime > BASE_MAX_AGE_S


def _debian(tar: Path) -> None:
    """Debian with Python and what it needs, from the repositories that this machine's apt uses."""
    # The repositories of the host's apt, with its mirror and its authentication.
    fields = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    lines = run([*command, "Origin: Debian", f"Architecture: {_architecture()}"]).splitlines()
    sources = sorted({line for line in lines if line.split()[2].startswith(_codename())})
    part = tar.with_suffix(".part.tar")
    # Without documentation, but with licenses.
    excluded = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in excluded]
    options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    options.append("--dpkgopt=force-unsafe-io")
    # What python:slim has, too: compiled packages are linked with C++'s library.
    packages = "--include=python3,ca-certificates,libstdc++6"
    arguments = ["--variant=essential", "--quiet", packages, *options, _codename(), part, "-"]
    run(["mmdebstrap", *arguments], stdin="\n".join(sources), timeout_s=BUILD_TIMEOUT_S)
    part.replace(tar)


def _codename() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _architecture() -> str:
    return run(["dpkg", "--print-architecture"]).strip()


def _lend(path: Path, name: Path) -> None:
    """Under another name, for as long as that is of use."""
    if path.stat().st_dev == name.parent.stat().st_dev:
        os.link(path, name)
    else:
        shutil.copy(path, name)
