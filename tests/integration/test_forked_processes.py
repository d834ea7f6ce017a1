"""A fork is what an executed process would be (``tests/forked_processes.py``)."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked_processes

#: Prints everything that a process can find out about itself.
SELF = """
import json, os, sys, threading, __main__
print(json.dumps({
    "name": __name__, "file": __main__.__file__, "words": sys.argv, "folder": os.getcwd(),
    "variables": {name: os.environ.get(name) for name in ("NEW", "HOME")},
    "descriptors": [n for n in range(3, 100) if os.path.exists(f"/proc/self/fd/{n}")],
    "interrupt": __import__("signal").getsignal(2) is __import__("signal").default_int_handler,
    "pid": os.getpid(), "group": os.getpgrp(), "session": os.getsid(0),
}), flush=True)
sys.stderr.write("said\\n")
"""
TURN_S = 30


async def _start_and_read(
    script: Path, log: Path, *arguments: str
) -> tuple[forked_processes.Forked, dict[str, Any]]:
    with log.open("wb") as stderr:
        command = (sys.executable, str(script), *arguments)
        process = await forked_processes.start("json", command, stderr.fileno())
    async with asyncio.timeout(TURN_S):
        return process, json.loads(await process.stdout.readline())


def _script(folder: Path, *more: str) -> Path:
    script = folder / "script.py"
    script.write_text("\n".join((SELF, *more)), "utf-8")
    return script


async def test_forked_process_equals_an_executed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW", "of this test")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    script = _script(tmp_path)
    process, forked_view = await _start_and_read(script, tmp_path / "log", "a", "--b")
    async with asyncio.timeout(TURN_S):
        assert await process.wait() == 0
    # The reference: the same script, executed by a new interpreter.
    executed = await asyncio.create_subprocess_exec(
        sys.executable, str(script), "a", "--b", stdout=-1, stderr=-3
    )
    output, _ = await executed.communicate()
    expected = json.loads(output)
    assert forked_view.pop("pid") == process.pid
    assert expected.pop("pid") == executed.pid
    assert forked_view == expected
    # Arguments, environment and descriptors are those of the command, not of the test.
    assert forked_view["words"] == [str(script), "a", "--b"]
    assert forked_view["variables"] == {"NEW": "of this test", "HOME": None}
    assert forked_view["descriptors"] == []
    assert (tmp_path / "log").read_text() == "said\n"


async def test_exit_status_of_a_fork_is_reported(tmp_path: Path) -> None:
    process, _ = await _start_and_read(_script(tmp_path, "sys.exit(7)"), tmp_path / "log")
    async with asyncio.timeout(TURN_S):
        assert [await process.wait(), process.returncode] == [7, 7]
    process.send_signal(signal.SIGKILL)  # the pid is no longer in use


async def test_killed_fork_does_not_affect_others(tmp_path: Path) -> None:
    script = _script(tmp_path, "sys.stdin.close()", "threading.Event().wait()")
    first, _ = await _start_and_read(script, tmp_path / "first")
    second, _ = await _start_and_read(script, tmp_path / "second")
    assert first.returncode is None
    first.send_signal(signal.SIGKILL)
    async with asyncio.timeout(TURN_S):
        assert await first.wait() == -signal.SIGKILL
        assert await first.stdout.read() == b""
    assert second.returncode is None
    os.kill(second.pid, 0)
    second.send_signal(signal.SIGTERM)
    async with asyncio.timeout(TURN_S):
        assert await second.wait() == -signal.SIGTERM


async def test_exception_of_a_fork_is_in_its_log(tmp_path: Path) -> None:
    process, _ = await _start_and_read(
        _script(tmp_path, "raise ValueError('here')"), tmp_path / "log"
    )
    async with asyncio.timeout(TURN_S):
        assert await process.wait() == 1
    assert "ValueError: here" in (tmp_path / "log").read_text()


async def test_another_interpreter_is_refused() -> None:
    with pytest.raises(ValueError, match="has to be executed"):
        await forked_processes.start("json", ("/bin/true",), 2)
