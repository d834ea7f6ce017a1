"""Cache keys and folders: the same inputs find the same build, any other input does not."""

import os
import threading
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tidemark_devcluster.toolchain.build import GoProgram, ensure_program
from tidemark_devcluster.toolchain.cache import build_key, cache_root, locked, prune, read_sources
from tidemark_devcluster.toolchain.golang import GoVersion

PROGRAM = GoProgram(
    name="program",
    version="v1.0.0",
    needs_go=GoVersion(1, 26, 0),
    packages=10,
    tags=("one", "two"),
    sources={"go.mod": b"module x", "main.go": b"package main"},
)


def test_key_depends_on_every_input_of_a_build() -> None:
    variants = [
        PROGRAM,
        replace(PROGRAM, name="other"),
        replace(PROGRAM, version="v1.0.1"),
        replace(PROGRAM, tags=("one",)),
        replace(PROGRAM, linker_flags=("-s",)),
        replace(PROGRAM, package="./cmd"),
        replace(PROGRAM, sources={**PROGRAM.sources, "go.sum": b""}),
        replace(PROGRAM, sources={**PROGRAM.sources, "main.go": b"package main "}),
    ]
    keys = [variant.key("linux-x86_64") for variant in variants] + [PROGRAM.key("darwin-arm64")]
    assert len(set(keys)) == len(keys)


def test_key_ignores_everything_else() -> None:
    assert replace(PROGRAM, packages=99).key("linux-x86_64") == PROGRAM.key("linux-x86_64")
    shuffled = dict(reversed(list(PROGRAM.sources.items())))
    assert replace(PROGRAM, sources=shuffled).key("p") == PROGRAM.key("p")


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_parts_never_run_into_each_other(left: list[str], right: list[str]) -> None:
    # Without separators, "a" and "b" would have the same key as "ab".
    assert (build_key(left, {}) == build_key(right, {})) == (left == right)


def test_the_cache_folder_follows_the_system() -> None:
    home = Path("/home/someone")
    named = {"XDG_CACHE_HOME": "/elsewhere"}
    assert cache_root(named, home, "linux") == Path("/elsewhere/tidemark")
    assert cache_root(named, home, "darwin") == Path("/elsewhere/tidemark")
    assert cache_root({}, home, "linux") == home / ".cache/tidemark"
    assert cache_root({"XDG_CACHE_HOME": "relative"}, home, "linux") == home / ".cache/tidemark"
    assert cache_root({}, home, "darwin") == home / "Library/Caches/tidemark"


def test_sources_are_what_go_reads(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("go.mod", "go.sum", "main.go", "inner/a.go", "notes.md"):
        (tmp_path / name).write_text(name)
    assert sorted(read_sources(tmp_path)) == ["go.mod", "go.sum", "inner/a.go", "main.go"]


def test_existing_build_is_used(tmp_path: Path) -> None:
    from tidemark_devcluster.toolchain.cache import platform_tag

    target = tmp_path / "bin/program" / f"v1.0.0-{PROGRAM.key(platform_tag())}" / "program"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"binary")
    os.utime(target.parent, (1, 1))
    assert ensure_program(PROGRAM, cache=tmp_path) == target
    # Use renews the time by which old builds are pruned.
    assert target.parent.stat().st_mtime > 1


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with locked(tmp_path / "lock", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock", lambda: None):
        # The second thread reports that it waits, and gets the lock afterwards.
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_old_builds_are_removed_and_the_last_used_stay(tmp_path: Path) -> None:
    for age, name in enumerate(("newest", "second", "third", "fourth", "fifth")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program").touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "second", "third"]
