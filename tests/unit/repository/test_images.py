"""Checks of the Dockerfiles without a container runtime.

The files they copy exist, and their last stage fits the chart's security context.
"""

import json
import re
from pathlib import Path

import pytest

from tools.images import runtime
from tools.requirement_sets import FOLDER, SETS

ROOT = Path(__file__).parents[3]
IMAGES = {
    "operator/Dockerfile": ("operator.txt", ["python3", "-m", "tidemark_operator"]),
    "broker_image/Dockerfile": ("broker.txt", ["python3", "-m", "tidemark_broker"]),
    "pipeline/Dockerfile": ("spark.txt", ["python3"]),
}
#: Images whose file system tools/images builds. Spark's launcher needs more than that.
MADE = ("operator/Dockerfile", "broker_image/Dockerfile")
each_image = pytest.mark.parametrize("path", IMAGES)


def instructions(path: str) -> list[tuple[str, str]]:
    """Return each instruction with its arguments, after joining continued lines."""
    text = (ROOT / path).read_text("utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def test_every_dockerfile_is_checked() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/Dockerfile")}
    assert found == IMAGES.keys()


@each_image
def test_copied_files_exist_and_are_not_ignored(path: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sources = [
        rest.split()[0] for word, rest in instructions(path) if word == "COPY" and "--" not in rest
    ]
    assert f"requirements/{IMAGES[path][0]}" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source.startswith(line[1:]) for line in ignored if line.startswith("!")), source


@each_image
def test_packages_are_a_set_of_the_lock_installed_by_hash(path: str) -> None:
    requirements = IMAGES[path][0]
    assert requirements in SETS
    assert "--hash=sha256:" in (FOLDER / requirements).read_text("utf-8")
    installs = [
        json.loads(rest) for word, rest in instructions(path) if word == "RUN" and '"pip"' in rest
    ]
    for install in installs:
        assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(install)
    # Packages from sources are built with pinned tools too, not with those that pip selects.
    built = [install for install in installs if any("--no-binary" in item for item in install)]
    assert all("--no-build-isolation" in install for install in built)
    assert len(installs) == 1 + len(built)


@each_image
def test_no_image_needs_a_shell_or_root(path: str) -> None:
    found = instructions(path)
    for word, rest in found:
        if word in ("RUN", "ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list), f"{word} goes through a shell: {rest}"
    # Only the last stage becomes the image.
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    ended = dict(found[last:])
    assert re.fullmatch(r"[1-9][0-9]{3,}:[1-9][0-9]{3,}", ended["USER"])
    assert json.loads(ended["ENTRYPOINT"]) == IMAGES[path][1]
    assert "org.opencontainers.image.revision" in ended["LABEL"]


@each_image
def test_bases_are_arguments(path: str) -> None:
    found = instructions(path)
    first = [word for word, _ in found].index("FROM")
    given = {rest.split("=")[0] for word, rest in found[:first] if word == "ARG"}
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    if path in MADE:
        assert given == {"BASE"}
        assert bases == ["${BASE}", "scratch"]
    else:
        assert given == {"BASE", "RUNTIME", "JAVA"}
        assert bases == ["${JAVA}", "${BASE}", "${RUNTIME}"]


@pytest.mark.parametrize("path", MADE)
def test_image_has_only_what_was_built(path: str) -> None:
    found = instructions(path)
    package = IMAGES[path][1][-1]
    assert ("RUN", f'["python3", "-m", "tools.images", "{package}"]') in found
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    copies = [rest for word, rest in found[last:] if word in ("COPY", "ADD", "RUN")]
    assert copies == ["--from=build /image/runtime /", "--from=build /image/program /"]
    environment = dict(found[last:])["ENV"]
    assert "PYTHONPATH=/app " in environment
    # Without a base image nothing else sets the search path of programs.
    assert f"PATH={runtime.SEARCHED} " in environment


def test_images_run_as_a_user_without_privileges() -> None:
    for path in MADE:
        assert dict(instructions(path))["USER"] == f"{runtime.USER}:{runtime.USER}"


def test_stop_signal_is_one_that_python_always_handles() -> None:
    """The kernel drops SIGTERM for a process 1 without a handler. Python always handles SIGINT."""
    for path in IMAGES:
        assert dict(instructions(path))["STOPSIGNAL"] == "SIGINT"


def test_common_instructions_are_the_same_in_all_images() -> None:
    """The Dockerfiles repeat it because each is built by itself."""

    def shared_lines(path: str, own: tuple[str, ...]) -> list[str]:
        requirements, (*_, package) = IMAGES[path]
        names = {f"requirements/{requirements}": "REQUIREMENTS", package: "PACKAGE"}
        names[str(Path(path).parent)] = "FOLDER"
        text = "\n".join(" ".join(instruction) for instruction in instructions(path))
        for name, stands_for in names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stands_for, text)
        return [line for line in text.splitlines() if not line.startswith(own)]

    operator, broker = (shared_lines(path, ("LABEL",)) for path in MADE)
    assert len(operator) > 15
    assert operator == broker
    # Spark's image has other stages, so that fewer of its lines can be compared.
    own = ("LABEL", "COPY", "RUN", "ENV PATH", "ENV PYTHONPATH", "ARG", "FROM", "ENTRYPOINT")
    spark = shared_lines("pipeline/Dockerfile", own)
    assert len(spark) > 2
    assert spark == [line for line in shared_lines(MADE[0], own) if line != "WORKDIR /build"]


def test_spark_runs_on_a_read_only_filesystem_without_a_user_name() -> None:
    """Numba needs a folder for its cache, and Hadoop a user with a name."""
    found = instructions("pipeline/Dockerfile")
    environment = dict(found)["ENV"]
    assert "NUMBA_CACHE_DIR=/tmp/" in environment
    (home,) = re.findall(r"JAVA_HOME=(\S+)", environment)
    assert ("COPY", f"--from=java {home} {home}") in found
    assert ("COPY", "--from=build /app/etc/passwd /etc/passwd") in found
    lines = (ROOT / "pipeline/passwd").read_text("utf-8").splitlines()
    assert dict(found)["USER"] in {":".join(line.split(":")[2:4]) for line in lines}
