"""Apache Kafka's classes as a JVM has them once they are loaded, in a file that the next JVMs map.

A node of a test then starts with half of the processor time (1.5 instead of 2.9 s). Writing the
file costs as much as ten starts, so that it is for tests alone, which start some dozens each time:
``python -m tools.programs`` writes it once (55 MB, in the cache beside the jars).
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark_devcluster.kafka_nodes import LIGHT, KafkaNodes
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.toolchain.cache import PRIVATE_DIR, build_key, prune
from tidemark_devcluster.toolchain.maven import java


def flags(jars: Path) -> tuple[str, ...]:
    """Those of a light JVM, with the classes where they are kept."""
    archive = _archive(jars)
    return (*LIGHT, f"-XX:SharedArchiveFile={archive}") if archive.exists() else LIGHT


def keep(jars: Path) -> None:
    """Write the file where there is none, by starting a broker and stopping it."""
    archive = _archive(jars)
    if archive.exists():
        return
    print("starting Apache Kafka once, to keep its classes for the next starts", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
    # Archives of other Java versions and jars are removed.
    prune(archive.parents[1])
    with TemporaryDirectory(prefix="tidemark-kafka-") as folder:
        layout = Layout(Path(folder))
        layout.create()
        made = layout.root / "classes.jsa"
        nodes = KafkaNodes(layout)
        # The JVM writes the archive when it ends, so the broker is started and stopped once.
        writing = (*LIGHT, f"-XX:ArchiveClassesAtExit={made}")
        nodes.create(controllers=0, replicas=1, tier=layout.tier, java=writing)
        nodes.declare_broker(1)
        try:
            nodes.start_all()
        finally:
            nodes.stop_all()
        part = archive.with_suffix(".part")
        shutil.copyfile(made, part)
        part.replace(archive)


def _archive(jars: Path) -> Path:
    """Return the class-data archive of the jars for this Java; another Java has another file."""
    program = java().resolve()
    key = build_key([str(program), str(program.stat().st_mtime_ns), str(jars)], {})
    return jars.parents[1] / "kafka-classes" / key / "classes.jsa"
