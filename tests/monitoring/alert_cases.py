"""Cases in which each alert fires and resolves: series in promtool's notation.

``0x9 1x20 0x20`` is 0 for ten samples, then 1, then 0 again, a sample a minute. The runner of the
cases adds the namespace of a series.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCase:
    """``series`` by name and labels. At ``not_yet`` the alert does not fire, at ``fires`` it does
    with ``labels``, at ``over`` it has resolved; in minutes, as is ``step``, from sample to
    sample."""

    series: dict[str, str]
    not_yet: int
    fires: int
    over: int
    labels: dict[str, str] = field(default_factory=dict)
    step: int = 1


def _bad_for_an_hour(series: str, *, bad: int = 1, after: int, **labels: str) -> AlertCase:
    """Well for 10 minutes, bad for 70, well again; ``after``: what stands behind ``for``."""
    # Samples are one minute apart: 10 of a healthy value, 70 of a bad one, 61 healthy ones.
    values = f"0x9 {bad}x69 0x60"
    return AlertCase(
        series={series: values}, not_yet=9 + after, fires=12 + after, over=85, labels=labels
    )


_COPY_LAG = "kafka_server_brokertopicmetrics_remotecopylag"
_ENDS = "tidemark_broker_certificate_expiry_timestamp_seconds"
_WAITS = "tidemark_objects_stalled"
_UNSETTLED = "tidemark_objects_unsettled"

CASES = {
    "TidemarkNoOperatorLeads": AlertCase(
        series={
            'tidemark_operator_leader{pod="operator-0"}': "1x9 0x20 0x60",
            'tidemark_operator_leader{pod="operator-1"}': "0x9 0x20 1x60",
        },
        not_yet=11,
        fires=14,
        over=40,
    ),
    # A leader without a term is one that cannot take over.
    "TidemarkTakeoverFails": AlertCase(
        series={
            'tidemark_operator_leader{pod="operator-0"}': "1x100",
            'tidemark_operator_term{pod="operator-0"}': "1x9 0x20 1x60",
        },
        not_yet=14,
        fires=17,
        over=40,
    ),
    "TidemarkReconcilingStalled": _bad_for_an_hour(
        "tidemark_operator_queue_head_age_seconds", bad=130, after=5
    ),
    "TidemarkReconcilingFails": AlertCase(
        series={
            'tidemark_operator_reconciles_total{kind="Topic", outcome="error"}': "0x9 1+1x60 61x60"
        },
        not_yet=20,
        fires=30,
        over=90,
        labels={"kind": "Topic"},
    ),
    "TidemarkDecisionsNotStored": _bad_for_an_hour(
        f'{_WAITS}{{kind="Cluster", reason="SliceRefused"}}',
        after=5,
        kind="Cluster",
        reason="SliceRefused",
    ),
    "TidemarkObjectStalled": _bad_for_an_hour(
        f'{_WAITS}{{kind="User", reason="SecretTaken"}}',
        after=15,
        kind="User",
        reason="SecretTaken",
    ),
    # Reasons that are expected to last, or that another alert reports, do not fire.
    "TidemarkObjectNotReady": AlertCase(
        series={
            'tidemark_objects_not_ready{kind="Topic", reason="Placing"}': "_x9 3x69 _x60",
            'tidemark_objects_not_ready{kind="Topic", reason="Deleting"}': "1x200",
            'tidemark_objects_not_ready{kind="Broker", reason="Fenced"}': "1x200",
            'tidemark_objects_not_ready{kind="Topic", reason="NameTaken"}': "1x200",
            f'{_WAITS}{{kind="Topic", reason="NameTaken"}}': "1x200",
        },
        not_yet=22,
        fires=27,
        over=90,
        labels={"kind": "Topic", "reason": "Placing"},
    ),
    "TidemarkDisablementStalled": _bad_for_an_hour(
        f'{_WAITS}{{kind="Topic", reason="NoProgress"}}', after=1
    ),
    "TidemarkRecordDeletionStuck": AlertCase(
        series={"tidemark_record_deletion_oldest_seconds": "0+60x40 0x60"},
        not_yet=15,
        fires=23,
        over=60,
    ),
    "TidemarkRecordDeletionFailed": _bad_for_an_hour(
        f'{_WAITS}{{kind="RecordDeletion", reason="Timeout"}}', after=1, reason="Timeout"
    ),
    "TidemarkExportFails": _bad_for_an_hour(
        f'{_WAITS}{{kind="Export", reason="JobFailed"}}', after=5, reason="JobFailed"
    ),
    "TidemarkExportBehind": AlertCase(
        series={
            f'{_UNSETTLED}{{kind="Export", condition="Exporting", reason="Lagging"}}': (
                "_x9 1x69 _x60"
            ),
            f'{_UNSETTLED}{{kind="Export", condition="Exporting", reason="Suspended"}}': "1x200",
        },
        not_yet=22,
        fires=27,
        over=90,
        labels={"reason": "Lagging"},
    ),
    "TidemarkTableMaintenanceFails": _bad_for_an_hour(
        f'{_UNSETTLED}{{kind="Export", condition="Maintained", reason="MaintenanceFailed"}}',
        after=60,
        reason="MaintenanceFailed",
    ),
    # 1,200,000 s are under the limit of 14 days. Only the listener's certificate expires.
    "TidemarkCertificateExpires": AlertCase(
        series={
            f'{_ENDS}{{pod="broker-1-0", certificate="listener"}}': "1200000x99 9000000x60",
            f'{_ENDS}{{pod="broker-1-0", certificate="cluster"}}': "9000000x160",
        },
        not_yet=59,
        fires=70,
        over=120,
        labels={"pod": "broker-1-0", "certificate": "listener"},
    ),
    "TidemarkPartitionsOffline": _bad_for_an_hour("tidemark_partitions_offline", after=1),
    "TidemarkPartitionsUnderMinIsr": _bad_for_an_hour(
        'tidemark_broker_under_min_isr_partitions{pod="broker-1-0"}', after=1
    ),
    "TidemarkPartitionsUnderReplicated": _bad_for_an_hour(
        "tidemark_partitions_under_replicated", after=15
    ),
    "TidemarkPlaceholders": _bad_for_an_hour("tidemark_placeholders", after=15),
    "TidemarkBrokerFenced": _bad_for_an_hour('tidemark_brokers{state="fenced"}', after=5),
    "TidemarkBrokerWithoutController": AlertCase(
        series={'tidemark_broker_controller_connected{pod="broker-1-0"}': "1x9 0x20 1x60"},
        not_yet=14,
        fires=17,
        over=40,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkBrokerStalled": _bad_for_an_hour(
        'tidemark_broker_loop_age_seconds{pod="broker-1-0"}', bad=6, after=1, pod="broker-1-0"
    ),
    "TidemarkDrainStuck": AlertCase(
        series={
            f'{_UNSETTLED}{{condition="Draining", reason="ReplicasInUse"}}': "_x9 1x69 _x60",
            f'{_UNSETTLED}{{condition="Draining", reason="MovingReplicas"}}': "1x200",
        },
        not_yet=22,
        fires=27,
        over=90,
        labels={"reason": "ReplicasInUse"},
    ),
    "TidemarkPodNotUpToDate": _bad_for_an_hour(
        f'{_UNSETTLED}{{condition="PodUpToDate", reason="RestartPending"}}',
        after=30,
        reason="RestartPending",
    ),
    "TidemarkExternalAddressMissing": _bad_for_an_hour(
        f'{_UNSETTLED}{{kind="Broker", condition="ExternalAddress", reason="AddressPending"}}',
        after=15,
        kind="Broker",
        reason="AddressPending",
    ),
    "TidemarkCreationsRefused": _bad_for_an_hour(
        f'{_UNSETTLED}{{kind="Cluster", condition="ObjectsAccepted", reason="CreationRefused"}}',
        after=5,
        kind="Cluster",
        reason="CreationRefused",
    ),
    "TidemarkStorageFails": AlertCase(
        series={
            'tidemark_broker_failing_replicas{pod="broker-1-0"}': "0x9 2x69 0x60",
            'tidemark_broker_offline_replicas{pod="broker-1-0"}': "0x200",
        },
        not_yet=10,
        fires=13,
        over=85,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkCleaningFails": _bad_for_an_hour(
        'tidemark_broker_cleaner_uncleanable_partitions{pod="broker-1-0"}',
        after=15,
        pod="broker-1-0",
    ),
    # Without tiered topics an unavailable tier affects no topic, so the alert joins both series.
    "TidemarkTierUnavailable": AlertCase(
        series={
            'tidemark_broker_remote_store_available{pod="broker-1-0"}': "1x9 0x20 1x60",
            'tidemark_topics{tiering="Enabled"}': "1x200",
        },
        not_yet=14,
        fires=17,
        over=40,
    ),
    "TidemarkTierDamaged": AlertCase(
        series={'tidemark_broker_remote_integrity_errors_total{pod="broker-1-0"}': "0x9 1x200"},
        not_yet=9,
        fires=12,
        over=80,
    ),
    "TidemarkAuditFoundDamage": _bad_for_an_hour(
        f'{_UNSETTLED}{{kind="Topic", condition="RemoteIntegrity", reason="DamageFound"}}',
        after=0,
        reason="DamageFound",
    ),
    "TidemarkTierCopiesFail": AlertCase(
        series={
            'kafka_server_brokertopicmetrics_remotecopyerrors_total{pod="broker-1-0"}': (
                "0x9 1+1x60 61x60"
            )
        },
        not_yet=20,
        fires=30,
        over=100,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkChunkCacheFails": AlertCase(
        series={
            'tidemark_broker_remote_chunk_cache_disk_errors_total{pod="broker-1-0"}': (
                "0x9 1+1x60 61x60"
            )
        },
        not_yet=20,
        fires=30,
        over=100,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkKmsFails": AlertCase(
        series={'tidemark_broker_remote_kms_errors_total{pod="broker-1-0"}': "0x9 1+1x60 61x60"},
        not_yet=13,
        fires=20,
        over=100,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkTierCopyLags": AlertCase(
        series={
            f'{_COPY_LAG}segments{{pod="broker-1-0"}}': "0x9 1+1x120 0x60",
            f'{_COPY_LAG}bytes{{pod="broker-1-0"}}': "0x9 100+100x120 0x60",
        },
        not_yet=50,
        fires=60,
        over=140,
        labels={"pod": "broker-1-0"},
    ),
    "TidemarkTieringLagging": _bad_for_an_hour(
        f'{_UNSETTLED}{{kind="Topic", condition="TieringLagging", reason="MaxLagExceeded"}}',
        after=5,
        reason="MaxLagExceeded",
    ),
    "TidemarkTierPartitionInError": _bad_for_an_hour(
        'tidemark_broker_remote_partitions_in_error{pod="broker-1-0"}', after=15, pod="broker-1-0"
    ),
    "TidemarkTierDeletionsFail": AlertCase(
        series={
            'kafka_server_brokertopicmetrics_remotedeleteerrors_total{pod="broker-1-0"}': (
                "0x9 1+1x90 91x60"
            )
        },
        not_yet=35,
        fires=45,
        over=130,
        labels={"pod": "broker-1-0"},
    ),
    # The rule looks back two days, so these samples are an hour apart.
    "TidemarkTierOrphans": AlertCase(
        series={'tidemark_broker_remote_orphans{pod="broker-1-0"}': "0x9 4x60 0x9"},
        not_yet=56 * 60,
        fires=60 * 60,
        over=75 * 60,
        step=60,
    ),
}
