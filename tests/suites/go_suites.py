"""Suites of Go clients: the tests of a published package, compiled as they are.

What a test is called is read from the sources, since some programs want their cluster before they
list their tests.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.suites import batches, packages
from tests.suites.broker_proxies import proxied
from tests.suites.outcomes import Report
from tests.suites.outputs import GoTest
from tests.suites.targets import KAFKA_VERSION, SuiteTarget, Wants, bootstrap
from tidemark_devcluster.toolchain.golang import required_module

_TEST = re.compile(r"^func (Test\w*)\(\w+ \*testing\.T\)", re.MULTILINE)
_CONSTRAINT = re.compile(r"^//go:build (.+)$", re.MULTILINE)

#: The environment of the tests, for as long as they run.
Environ = Callable[[SuiteTarget, Path], AbstractContextManager[Mapping[str, str]]]


def named_tests(sources: Mapping[str, str], constraint: str) -> list[str]:
    """The tests in files (by name) whose build constraint is this one ("": none), in Go's
    order."""
    return [
        test
        for name in sorted(sources)
        if name.endswith("_test.go")
        and constraint == (found[1] if (found := _CONSTRAINT.search(sources[name])) else "")
        for test in _TEST.findall(sources[name])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSuite:
    """``constraint``: of the files whose tests count, and a tag to build with."""

    name: str
    module: str
    package: str
    wants: Wants
    environ: Environ
    limit_s: float
    constraint: str = ""
    limits_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        go_mod = (packages.MODULES / self.name / "go.mod").read_text("utf-8")
        return f"{self.package.partition('/')[2]} {required_module(go_mod, self.module)}"

    def prepare(self) -> "ReadyGoSuite":
        tags = (self.constraint,) if self.constraint else ()
        # The build tag selects the files whose tests count.
        program, sources = packages.go_tests(self.name, self.package, tags=tags)
        texts = {path.name: path.read_text("utf-8") for path in sources.glob("*_test.go")}
        return ReadyGoSuite(self, program, sources, named_tests(texts, self.constraint))


@dataclass(frozen=True, slots=True)
class ReadyGoSuite:
    """``program``: the compiled tests; ``sources``: where they look for what they read."""

    suite: GoSuite
    program: Path
    sources: Path
    tests: Sequence[str]

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        with self.suite.environ(target, folder) as environ:
            program = batches.Program(
                command=self.command,
                reader=GoTest(),
                folder=self.sources,
                environ=environ,
                prepare=partial(self.mend, target),
            )
            batches.run(
                program,
                tests,
                limit_s=lambda test: self.suite.limits_s.get(test, self.suite.limit_s),
                log=folder / "output.log",
                report=report,
            )

    def mend(self, target: SuiteTarget) -> None:
        """Start brokers that a test has stopped, and leave the others running."""
        if self.suite.wants.stops_brokers:
            for node in range(1, len(target.listeners) + 1):
                target.start_broker(node)

    def command(self, tests: Sequence[str]) -> list[str]:
        """One at a time, also of those that would run side by side."""
        return [
            str(self.program),
            *("-test.v=test2json", "-test.parallel=1", "-test.count=1", "-test.timeout=0"),
            f"-test.run=^({'|'.join(tests)})$",
        ]


# ---------------------------------------------------------------- the three


@contextmanager
def _franz_go(target: SuiteTarget, _: Path) -> Iterator[Mapping[str, str]]:
    """A tenth of the records that its authors send through each topology."""
    yield {
        "KGO_SEEDS": bootstrap(target),
        "KGO_TEST_RF": str(min(3, len(target.listeners))),
        "KGO_TEST_RECORDS": "50000",
        "KGO_LOG_LEVEL": "none",
    }


@contextmanager
def _kafka_go(_: SuiteTarget, __: Path) -> Iterator[Mapping[str, str]]:
    """Its tests of sockets are left out, as its authors do. Without a version nearly all of its
    tests of requests end at once, and count as passed."""
    yield {"KAFKA_SKIP_NETTEST": "1", "KAFKA_VERSION": KAFKA_VERSION}


@contextmanager
def _sarama(target: SuiteTarget, folder: Path) -> Iterator[Mapping[str, str]]:
    with proxied(target, folder, SARAMA_PORTS) as environ:
        yield {**environ, "KAFKA_VERSION": KAFKA_VERSION}


SARAMA_PORTS = range(29091, 29096)

FRANZ_GO = GoSuite(
    name="franz-go",
    module="github.com/twmb/franz-go",
    package="github.com/twmb/franz-go/pkg/kgo",
    wants=Wants(brokers=3),
    environ=_franz_go,
    limit_s=120,
    limits_s=dict.fromkeys(("TestGroupETL", "TestTxnEtl", "TestShareGroupETL"), 600),
)
SARAMA = GoSuite(
    name="sarama",
    module="github.com/IBM/sarama",
    package="github.com/IBM/sarama",
    constraint="functional",
    wants=Wants(
        brokers=5,
        advertised=SARAMA_PORTS,
        racks=("1", "2", "3", "4", "5"),
        stops_brokers=True,
        entries={
            "auto.create.topics.enable": "false",
            "default.replication.factor": "2",
            "offsets.topic.replication.factor": "2",
            "transaction.state.log.replication.factor": "2",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        },
    ),
    environ=_sarama,
    limit_s=180,
)
#: Its tests require a broker that advertises localhost:9092, and add ACLs and users to it.
#: ``docker_compose_versions/README.md`` of its sources lists the required settings.
KAFKA_GO = GoSuite(
    name="kafka-go",
    module="github.com/segmentio/kafka-go",
    package="github.com/segmentio/kafka-go",
    wants=Wants(
        brokers=1,
        ports=(9092,),
        advertised=(9092,),
        host="localhost",
        # Of what stands there group.initial.rebalance.delay.ms=0 is left out: groups would form
        # before their topics have come by themselves, and get nothing.
        entries={"auto.create.topics.enable": "true", "message.max.bytes": "200000000"},
        kafka_entries={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        },
    ),
    environ=_kafka_go,
    limit_s=120,
    limits_s={"TestReaderConsumerGroup": 300},
)
