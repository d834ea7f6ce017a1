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

#: What a process is, as far as it can tell.
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


async def _told(
    script: Path, log: Path, *words: str
) -> tuple[forked_processes.Forked, dict[str, Any]]:
    with log.open("wb") as stderr:
        command = (sys.executable, str(script), *words)
        process = await forked_processes.start("json", command, stderr.fileno())
    async with asyncio.timeout(TURN_S):
        return process, json.loads(await process.stdout.readline())


def _script(folder: Path, *more: str) -> Path:
    script = folder / "script.py"
    script.write_text("\n".join((SELF, *more)), "utf-8")
    return script


async def test_it_is_as_if_it_were_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW", "of this test")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    script = _script(tmp_path)
    process, told = await _told(script, tmp_path / "log", "a", "--b")
    async with asyncio.timeout(TURN_S):
        assert await process.wait() == 0
    executed = await asyncio.create_subprocess_exec(
        sys.executable, str(script), "a", "--b", stdout=-1, stderr=-3
    )
    said, _ = await executed.communicate()
    expected = json.loads(said)
    assert told.pop("pid") == process.pid
    assert expected.pop("pid") == executed.pid
    assert told == expected
    assert told["words"] == [str(script), "a", "--b"]
    assert told["variables"] == {"NEW": "of this test", "HOME": None}
    assert told["descriptors"] == []
    assert (tmp_path / "log").read_text() == "said\n"


async def test_its_exit_status_is_reported(tmp_path: Path) -> None:
    process, _ = await _told(_script(tmp_path, "sys.exit(7)"), tmp_path / "log")
    async with asyncio.timeout(TURN_S):
        assert [await process.wait(), process.returncode] == [7, 7]
    process.send_signal(signal.SIGKILL)  # the pid is no longer in use


async def test_others_outlive_one_that_is_killed(tmp_path: Path) -> None:
    script = _script(tmp_path, "sys.stdin.close()", "threading.Event().wait()")
    first, _ = await _told(script, tmp_path / "first")
    second, _ = await _told(script, tmp_path / "second")
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


async def test_what_it_raises_is_in_its_log(tmp_path: Path) -> None:
    process, _ = await _told(_script(tmp_path, "raise ValueError('here')"), tmp_path / "log")
    async with asyncio.timeout(TURN_S):
        assert await process.wait() == 1
    assert "ValueError: here" in (tmp_path / "log").read_text()


async def test_another_interpreter_is_refused() -> None:
    with pytest.raises(ValueError, match="has to be executed"):
        await forked_processes.start("json", ("/bin/true",), 2)
