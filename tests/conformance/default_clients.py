"""Eight stock clients, each a program that receives only an address, a topic and a group.

All have the same interface: ``ADDRESS TOPIC GROUP NAME COUNT`` (see
``clients/python_defaults.py``). This module adapts kcat to it.
"""

import itertools
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conformance.kcat import Kcat, ensure_kcat
from tests.kafka_programs import JAVA, kafka_jars
from tests.suites.packages import Missing, go_program, npm_folder

CLIENTS = Path(__file__).with_name("clients")
_TIMEOUT_S = 120
_PROBE_S = 0.3

#: Arguments → what a member of the group heard.
Talk = Callable[[str, str, str, str, int], list[str]]


def ensure_clients() -> None:
    """Build or fetch those that need it. Raises :class:`Missing`."""
    for name in ("franz", "sarama"):
        go_program(CLIENTS / "go", f"./{name}")
    npm_folder(CLIENTS / "js")


def _python(client: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(CLIENTS / "python_defaults.py"), client]


def _java() -> list[str]:
    return [*JAVA, "-cp", f"{kafka_jars()}/*", str(CLIENTS / "Defaults.java")]


def _go(name: str) -> list[str]:
    return [str(go_program(CLIENTS / "go", f"./{name}"))]


def _node() -> list[str]:
    return ["node", str(npm_folder(CLIENTS / "js") / "defaults.js")]


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "confluent-kafka": lambda: _python("confluent-kafka"),
    "kafka-python": lambda: _python("kafka-python"),
    "aiokafka": lambda: _python("aiokafka"),
    "java": _java,
    "franz-go": lambda: _go("franz"),
    "sarama": lambda: _go("sarama"),
    "kafkajs": _node,
}


def talk_of(client: str) -> Talk:
    """Return the adapter of a client; the test is skipped if the client is not available."""
    if client == "kcat":
        return lambda *arguments: _kcat(ensure_kcat(), *arguments)
    try:
        command = COMMANDS[client]()
    except Missing as error:
        pytest.skip(str(error))
    return lambda *arguments: _run(command, arguments)


def _run(command: Sequence[str], arguments: Sequence[object]) -> list[str]:
    done = subprocess.run(
        [*command, *map(str, arguments)],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def _kcat(kcat: Kcat, address: str, topic: str, group: str, name: str, count: int) -> list[str]:
    """The member runs beside as many producers as there are values."""
    heard: list[str] = []
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen(
        [kcat.program, "-b", address, "-G", group, "-u", "-q", topic],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=kcat.environment,
    ) as member:
        assert member.stdout is not None
        output = member.stdout
        # A thread reads the pipe, so that the loops below can wait with a timeout.
        reading = threading.Thread(target=lambda: [lines.put(line) for line in output])
        reading.start()
        try:
            # kcat starts at the end of the log, so probes are written until one arrives: from then
            # on the member has its partition.
            for number in itertools.count():
                assert number < _TIMEOUT_S / _PROBE_S, "the member hears nothing"
                _say(kcat, address, topic, ["probe"])
                try:
                    heard.append(lines.get(timeout=_PROBE_S).rstrip())
                    break
                except queue.Empty:
                    continue
            # The member has a position now. All values are written at once and read up to the last.
            values = [f"{name} {number}" for number in range(count)]
            _say(kcat, address, topic, values)
            while heard[-1] != values[-1]:
                heard.append(lines.get(timeout=_TIMEOUT_S).rstrip())
        finally:
            member.terminate()
            reading.join()
    return heard


def _say(kcat: Kcat, address: str, topic: str, values: Sequence[str]) -> None:
    said = "".join(f"{value}\n" for value in values).encode()
    kcat.run("-P", "-b", address, "-t", topic, stdin=said)
