"""kafka-python's integration tests, from its source distribution.

It leaves out two files that they import: the marker of their package, and the module that would
start brokers, which they do not need where one is given.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suites import batches, packages
from tests.suites.outcomes import Report
from tests.suites.outputs import Pytest
from tests.suites.targets import KAFKA_VERSION, SuiteTarget, Wants

VERSION = "3.0.12"
_SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
LIMIT_S = 90.0
_SERVICE = '''"""The brokers are there already."""


class ExternalService:
    def __init__(self, host, port):
        """Nothing is started."""

    def open(self):
        """Nothing is started."""

    def close(self):
        """Nothing was started."""


SpawnedService = None
'''
#: What pytest is given here and those tests know nothing of.
_WITHOUT = ("asyncio", "cacheprovider", "hypothesispytest", "pytest_cov", "randomly", "xdist")
_PYTEST = (
    *(sys.executable, "-W", "ignore", "-m", "pytest"),
    *(item for plugin in _WITHOUT for item in ("-p", f"no:{plugin}")),
)
_ENVIRON = {"KAFKA_VERSION": KAFKA_VERSION.rpartition(".")[0], "COLUMNS": "200"}


class KafkaPython:
    """The suite. Its tests are given one broker with the settings that its authors start one with;
    those of SASL and TLS want to start brokers themselves, and skip."""

    name = "kafka-python"
    title = f"kafka-python {VERSION}, test/integration"
    wants = Wants(
        brokers=1,
        first_node=0,
        entries={
            "auto.create.topics.enable": "true",
            "num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
        },
    )

    def prepare(self) -> "ReadyKafkaPython":
        # The source distribution lacks two modules that its tests import.
        folder = packages.sdist(f"kafka-python=={VERSION}", _SHA256)
        (folder / "test" / "__init__.py").touch()
        (folder / "test" / "service.py").write_text(_SERVICE, encoding="utf-8")
        listed = packages.command(
            *(*_PYTEST, "--collect-only", "-q", "test/integration"),
            folder=folder,
            environ=_ENVIRON,
        )
        # Compression codecs are separate packages.
        codecs = packages.wheels(packages.MODULES / "kafka-python" / "requirements.txt")
        return ReadyKafkaPython(folder, codecs, named_tests(listed))


def named_tests(listed: str) -> list[str]:
    """As ``pytest --collect-only -q`` lists them."""
    return [line for line in listed.splitlines() if line.startswith("test/") and "::" in line]


@dataclass(frozen=True, slots=True)
class ReadyKafkaPython:
    """Unpacked, in ``folder``; ``codecs``: to import them from."""

    folder: Path
    codecs: Path
    tests: Sequence[str]

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        root = folder / "kafka"
        root.mkdir()
        program = batches.Program(
            command=command,
            reader=Pytest(),
            folder=self.folder,
            environ={
                **_ENVIRON,
                "PYTHONPATH": str(self.codecs),
                "KAFKA_URI": f"kafka://{target.listeners[0]}",
                "KAFKA_ROOT": str(root),
            },
        )
        batches.run(
            program,
            tests,
            # pytest itself ends a late test, and continues.
            limit_s=lambda _: LIMIT_S + 30,
            log=folder / "output.log",
            report=report,
        )


def command(tests: Sequence[str]) -> list[str]:
    """A signal ends a test that is late; a thread, as the package has it, would end all."""
    return [*_PYTEST, "-v", f"--timeout={LIMIT_S:.0f}", "--timeout-method=signal", *tests]
