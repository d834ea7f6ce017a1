"""The operator's metrics of a cluster's state, and when they are absent."""

import itertools

from tests.fake_api_server import CREATED
from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.metrics import operator_table
from tidemark_operator.kube.kinds import BROKER, RECORD_DELETION, TOPIC, Json, Kind
from tidemark_operator.metrics import Metrics
from tidemark_operator.reconcile.state_metrics import measure

_numbers = itertools.count(10_000)


def figure(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tidemark_{name}", labels)


def seen(kind: Kind, *conditions: tuple[str, str, str], created: str = CREATED) -> Json:
    """Return an object as a watch delivers it, with conditions by (type, status, reason)."""
    number = next(_numbers)
    return {
        "kind": kind.kind,
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"seen-{number}",
            "uid": f"uid-{number}",
            "resourceVersion": str(number),
            "creationTimestamp": created,
        },
        "status": {
            "conditions": [
                {"type": type_, "status": status, "reason": reason}
                for type_, status, reason in conditions
            ]
        },
    }


async def test_objects_are_counted_by_their_problem() -> None:
    world = ShellWorld()
    world.make_cluster()
    async with world.term():
        services = world.services
        services.objects.listener = None
        # Problems of all kinds, and objects whose conditions are fine.
        for body in (
            seen(TOPIC, ("Ready", "True", "Serving"), ("Stalled", "True", "NoProgress")),
            seen(TOPIC, ("Ready", "True", "Serving"), ("Stalled", "True", "NoProgress")),
            seen(
                TOPIC,
                ("Ready", "False", "PartitionsOffline"),
                ("FullyReplicated", "False", "ReplicasBehind"),
            ),
            seen(BROKER, ("Ready", "Unknown", "Pending"), ("Stalled", "False", "Progressing")),
            seen(BROKER, ("Draining", "True", "ReplicasCannotMove"), ("Registered", "False", "x")),
            seen(BROKER, ("Draining", "False", "Drained"), ("PodUpToDate", "True", "x")),
            seen(
                RECORD_DELETION, ("Succeeded", "False", "Timeout"), ("Stalled", "True", "Timeout")
            ),
            # An object without a status yet is only counted.
            {**seen(TOPIC), "status": None},
        ):
            services.objects.put(body)
        measure(services)
        metrics = services.metrics
        # Four Topics, including the one without a status.
        assert figure(metrics, "objects", kind="Topic") == 4
        assert figure(metrics, "objects", kind="User") == 0
        assert figure(metrics, "objects_stalled", kind="Topic", reason="NoProgress") == 2
        assert figure(metrics, "objects_not_ready", kind="Topic", reason="PartitionsOffline") == 1
        assert figure(metrics, "objects_not_ready", kind="RecordDeletion", reason="Timeout") == 1
        shown = metrics.render().decode()
        assert shown.count("tidemark_objects_stalled{") == 2
        assert shown.count("tidemark_objects_not_ready{") == 2
        assert shown.count("tidemark_objects_unsettled{") == 2
        draining = {"kind": "Broker", "condition": "Draining", "reason": "ReplicasCannotMove"}
        assert figure(metrics, "objects_unsettled", **draining) == 1


async def test_oldest_deletion_ignores_finished_and_paused_ones() -> None:
    world = ShellWorld()
    world.make_cluster()
    async with world.term():
        services, metrics = world.services, world.services.metrics
        services.objects.listener = None
        # Neither a finished nor a paused deletion is under way.
        services.objects.put(seen(RECORD_DELETION, ("Succeeded", "True", "Deleted")))
        services.objects.put(seen(RECORD_DELETION, ("Succeeded", "Unknown", "Paused")))
        measure(services)
        assert figure(metrics, "record_deletion_oldest_seconds") == 0
        created = world.now().isoformat()
        services.objects.put(
            seen(RECORD_DELETION, ("Succeeded", "Unknown", "Deleting"), created=created)
        )
        measure(services)
        assert 0 <= (figure(metrics, "record_deletion_oldest_seconds") or 0) < 60
        # A deletion without conditions, created long ago, has not been started.
        services.objects.put(seen(RECORD_DELETION))
        measure(services)
        assert (figure(metrics, "record_deletion_oldest_seconds") or 0) > 3600


async def test_state_metrics_are_absent_without_a_term() -> None:
    """Otherwise Prometheus would show the former leader's values beside the present ones."""
    world = ShellWorld()
    world.make_cluster()
    async with world.term():
        measure(world.services)
        metrics = world.services.metrics
    assert figure(metrics, "partitions_offline") == 0
    metrics.measured.forget()
    assert figure(metrics, "partitions_offline") is None
    shown = metrics.render().decode()
    assert all(f"# TYPE {row.name} gauge\n" in shown for row in operator_table.MEASURED)
