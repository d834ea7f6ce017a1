"""``python -m tools.programs``: the programs that the tests run beside ours, had before the first
test.

Building the control plane, MinIO, Helm or Prometheus takes minutes on a machine that has not done
it, longer than a test may take; and two tests side by side would wait for one another's build. What
is in the cache costs nothing. Jars (Kafka's, tables') are left out where there is no Java or Maven,
clients where there is no Node: their tests say so. The code that numba compiles belongs to a
checkout, and is compiled here for the same reason.
"""

import contextlib

import numpy as np

from tests import apache_kafka, kafka_classes
from tests.apicurio import ApicurioMissing, ensure_apicurio
from tests.conformance.default_clients import ensure_clients
from tests.conformance.kcat import ensure_kcat
from tests.helm import ensure_helm
from tests.monitoring.programs import ensure_prometheus, ensure_promtool
from tests.suites.packages import Missing
from tests.suites.short_selection import ensure_short
from tests.table_jars import MavenMissing, jars
from tidemark_avro.column_types import columns_of
from tidemark_avro.decode import AvroDecoder
from tidemark_avro.schema import parse_schema
from tidemark_devcluster.toolchain.build import ensure_controlplane, ensure_minio
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.read.task_execution import load_decoder


def main() -> None:
    """Build or fetch each; raises ToolchainError or CalledProcessError."""
    # Programs that every run needs. A failure ends this command.
    _compile_decoders()
    ensure_controlplane()
    ensure_minio()
    ensure_helm()
    ensure_prometheus()
    ensure_promtool()
    ensure_kcat()
    try:
        kafka_classes.keep(apache_kafka.jars())
    except apache_kafka.MavenMissing as error:
        print(f"TESTS OF APACHE KAFKA ARE SKIPPED: {error}", flush=True)
    with contextlib.suppress(MavenMissing):
        jars(*Format)
    with contextlib.suppress(ApicurioMissing):
        ensure_apicurio()
    with contextlib.suppress(Missing):
        ensure_clients()
        ensure_short()


def _compile_decoders() -> None:
    """In a new checkout: a quarter of a minute each, which every process of tests would take."""
    load_decoder()
    schema = parse_schema(
        '{"type": "record", "name": "r", "fields": [{"name": "f", "type": "long"}]}'
    )
    data, place = np.frombuffer(b"\0", dtype=np.uint8), np.zeros(1, dtype=np.int64)
    for _ in AvroDecoder(schema, columns_of(schema)).decode(data, place, place + 1):
        pass


if __name__ == "__main__":
    main()
