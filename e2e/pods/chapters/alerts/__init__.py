"""Every alert of the chart fires for its cause, and resolves once the cause is fixed.

A Prometheus in a pod evaluates the rules that the chart renders, with short durations and nothing
else changed (:mod:`e2e.pods.monitoring.fast_rules`). While an alert fires, the commands of its
runbook are run unchanged.
"""

from e2e.pods.chapters.alerts import brokers, operators, storage, tier
from e2e.pods.chapters.alerts.fault import any_
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.images import PROMETHEUS
from e2e.pods.monitoring.watching import Prometheus
from e2e.pods.stage import Stage

#: In the order in which they are caused: what takes a minute to be tried again comes first.
FAULTS = (
    *storage.FAULTS,
    *brokers.FAULTS,
    *operators.FAULTS,
    *tier.FAULTS,
)
#: Shown by promtool alone (``tests/integration/monitoring/test_alerts.py``), and why.
NOT_HERE = {
    "TidemarkDisablementStalled": "the ten minutes without progress are a constant of the operator",
    "TidemarkDecisionsNotStored": (
        "it takes a writer that is quicker than the operator many times in a row, or topics of "
        "10,000 partitions by the dozen; where no slice can be written, TidemarkTakeoverFails tells"
    ),
    "TidemarkExternalAddressMissing": (
        "it takes a listener that waits for a load balancer, and two restarts of every broker: the "
        "chapter outside sees the condition that it requires"
    ),
    "TidemarkCreationsRefused": (
        "it takes an admission policy of the whole cluster: "
        "tests/integration/operator/test_object_metadata.py has one and sees the condition"
    ),
    "TidemarkExportBehind": "the quarter of an hour is a constant of the operator",
    "TidemarkTableMaintenanceFails": (
        "it takes an Export with a schedule: tests/integration/pipeline/test_table_upkeep.py has "
        "steps that fail and sees the report"
    ),
    "TidemarkAuditFoundDamage": "it takes an audit, which needs Spark beside the pods",
    "TidemarkTieringLagging": (
        "it takes a topic with a maximum lag: tests/integration/remote_log/test_max_lag.py has a "
        "slow store and sees the condition"
    ),
    "TidemarkChunkCacheFails": (
        "it takes a cache on a file system that fails: tests/unit/remote_log/test_chunk_files.py "
        "has one and counts its errors"
    ),
    "TidemarkKmsFails": (
        "it takes a server of KMS: tests/integration/remote_log/test_encrypted_segments.py has one "
        "that refuses keys, and sees the condition and the count"
    ),
}


def _watched(stage: Stage) -> None:
    Prometheus(stage).start()
    stage.wait("silence", lambda: ", ".join(sorted(any_(Prometheus(stage)))))


def _resolved(stage: Stage) -> None:
    prometheus = Prometheus(stage)
    stage.wait("silence", lambda: ", ".join(sorted(any_(prometheus))))
    prometheus.stop()
    storage.tidy(stage)


CHAPTER = Chapter(
    "alerts",
    "every alert is raised by what it is for, its runbook is followed, and it resolves",
    (
        Step("an installation that is well raises none", _watched),
        *(fault.step() for fault in (*storage.FAULTS, *brokers.FAULTS, *operators.FAULTS)),
        Step("brokers with an account of their own in the store", tier.prepare, beside_pods=True),
        *(fault.step() for fault in tier.FAULTS),
        Step("that account is given up", tier.tidy, beside_pods=True),
        Step("all of them resolve", _resolved),
    ),
    takes_s=166,
    images=(PROMETHEUS,),
)
