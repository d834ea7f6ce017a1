"""``python -m tests.programs``: the programs that the tests run beside ours, had before the first
test.

Building the control plane, MinIO, Helm or Prometheus takes minutes on a machine that has not done
it, longer than a test may take; and two tests side by side would wait for one another's build. What
is in the cache costs nothing. Jars (Kafka's, tables') are left out where there is no Java or Maven,
clients where there is no Node: their tests say so.
"""

import contextlib

from tests import apache_kafka, kafka_classes
from tests.apicurio import ApicurioMissing, ensure_apicurio
from tests.conformance.default_clients import ensure_clients
from tests.conformance.kcat import ensure_kcat
from tests.helm import ensure_helm
from tests.monitoring.programs import ensure_prometheus, ensure_promtool
from tests.suites.packages import Missing
from tests.suites.short import ensure_short
from tests.table_jars import MavenMissing, jars
from tidemark_cli.toolchain.programs import ensure_controlplane, ensure_minio
from tidemark_pipeline.export.formats import Format


def main() -> None:
    """Build or fetch each; raises ToolchainError or CalledProcessError."""
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


if __name__ == "__main__":
    main()
