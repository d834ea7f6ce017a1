"""One Export on a fake API server: its status is written before its job, and has the outcome."""

import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.export_job import ExportJobPhase, JobReport, MaintenanceReport
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.exports import LOOK_MS, SOON_MS
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import CLUSTER, EXPORT, SECRET, TOPIC, USER
from tidemark_operator.reconcile.export_reconciler import PROBLEM_S, SECRETS_S, ExportReconciler
from tidemark_operator.resources.names import OFFERED_ANNOTATION
from tidemark_operator.users.user_secret import USER_SECRETS

X = f"{NAMESPACE}/x"


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(remoteStorage={"filesystem": {"path": "/tier"}})
    made.make_broker(1)
    made.make_topic()
    async with made.term():
        await made.start_broker(1)
        yield made


async def reconcile(world: ShellWorld, name: str = "x") -> float | None:
    return await ExportReconciler(world.services).reconcile(world.key(EXPORT, name))


def make_secret(world: ShellWorld, name: str, **metadata: Any) -> None:
    world.server.create("user", SECRET, NAMESPACE, {"metadata": {"name": name, **metadata}})


def offer(world: ShellWorld, secret: str, to: str) -> None:
    """Change the annotation, as the Secret's owner does."""
    body = world.server.find(SECRET, secret)
    assert body is not None
    meta = {**body["metadata"], "annotations": {OFFERED_ANNOTATION: to}}
    world.server.replace("user", SECRET, {**body, "metadata": meta})


async def settle(world: ShellWorld, name: str = "x") -> None:
    """Reconcile until no immediate repetition is requested."""
    for _ in range(5):
        if await reconcile(world, name) != 0.0:
            return
    raise AssertionError("the Export requests another pass every time")


async def running(world: ShellWorld, **figures: int) -> None:
    """Create an Export whose first job is running."""
    world.make_export()
    await reconcile(world)
    world.jobs.run(X, 1, **{"lag": 5, "rows": 1, "commits": 1} | figures)
    await reconcile(world)
    world.journal.clear()


def order(world: ShellWorld) -> dict[str, str]:
    return dict(world.jobs.wanted[X].order.source)


def run_of(world: ShellWorld) -> dict[str, Any]:
    return dict(world.status(EXPORT, "x")["run"])


def ready(world: ShellWorld, name: str = "x") -> tuple[str, str]:
    return world.condition(EXPORT, name, "Ready")[:2]


async def test_the_status_is_written_before_the_job(world: ShellWorld) -> None:
    world.make_export()
    assert await reconcile(world) == SOON_MS / 1000
    # In this order, a crash between the two never leaves a job that no status knows.
    assert world.journal == ["replace_status Export x", "start x-1"]
    assert run_of(world)["number"] == 1
    assert "outcome" not in run_of(world)
    assert ready(world) == ("False", "JobStarting")
    assert order(world) == {
        "topic": "t",
        "tier": "auto",
        "path": "/tier",
        "bootstrap": "127.0.0.1:9092",
    }


async def test_a_job_is_not_made_where_the_status_could_not_be_written(world: ShellWorld) -> None:
    world.make_export()
    world.server.edit(EXPORT, "x", {"suspend": False})  # the watch has not delivered it yet
    with pytest.raises(Conflict):
        await reconcile(world)
    assert "start x-1" not in world.journal


async def test_operator_restarted_before_the_job_starts_reuses_its_number(
    world: ShellWorld,
) -> None:
    world.make_export()
    await reconcile(world)
    # The operator ended after the status write: the job was never created.
    world.jobs.seen.clear()
    world.journal.clear()
    await reconcile(world)
    assert world.journal == ["start x-1"]


async def test_figures_and_conditions_of_a_job_that_runs(world: ShellWorld) -> None:
    await running(world)
    status = world.status(EXPORT, "x")
    assert (status["lag"], status["rows"]) == (5, 1)
    assert ready(world) == ("True", "Running")
    assert world.condition(EXPORT, "x", "Exporting")[:2] == ("True", "CatchingUp")
    due_s = await reconcile(world)
    assert due_s == pytest.approx(LOOK_MS / 1000, abs=1)
    world.jobs.run(X, 1, lag=0, rows=2, commits=2, current_ms=wall_ms())
    await reconcile(world)
    assert world.condition(EXPORT, "x", "Exporting")[1] == "UpToDate"


async def test_failed_maintenance_is_an_event(world: ShellWorld) -> None:
    world.make_export(maintenance={})
    await reconcile(world)
    failed = MaintenanceReport(started_ms=1, ended_ms=2, failures=1, message="db.t: no room")
    for report in (failed, failed, dataclasses.replace(failed, failures=0)):
        world.jobs.run(X, 1, lag=5, rows=1, commits=1, maintenance=report)
        await reconcile(world)
    found = [event for event in world.events.emitted if event.reason.startswith("Maint")]
    # Once when it begins to fail, and once when it recovers.
    assert [event.reason for event in found] == ["MaintenanceFailed", "Maintained"]
    assert "db.t: no room" in found[0].message


async def test_a_failed_job_is_reported_and_restarted(world: ShellWorld) -> None:
    """The exit of JobFailed: the next run starts by itself."""
    await running(world)
    # The job fails, and its last report carries the message.
    world.jobs.end(
        X, 1, JobReport(phase=ExportJobPhase.FAILED, message="the store said 503", lag=5)
    )
    await settle(world)
    assert run_of(world)["outcome"] == "Failed"
    reason, text = world.condition(EXPORT, "x", "Ready")[1:]
    assert reason == "JobFailed"
    assert "the store said 503. The next run starts at" in text
    assert world.events.reasons[-2:] == ["Running", "ExportFailed"]
    assert world.services.metrics.render().count(b"tidemark_operator_failed_exports_total 1.0") == 1
    # Move the failure into the past, so that the back-off is over.
    begun = {**world.known(EXPORT, "x")["status"]["run"], "endTime": "2020-01-01T00:00:00Z"}
    status = {**world.known(EXPORT, "x")["status"], "run": begun}
    await world.services.client.replace_status(EXPORT, world.key(EXPORT, "x"), status)
    await reconcile(world)
    assert run_of(world)["number"] == 2
    world.jobs.run(X, 2, lag=0, current_ms=wall_ms())
    await reconcile(world)
    assert ready(world) == ("True", "Running")
    assert "lastFailure" not in world.status(EXPORT, "x")


async def test_changed_spec_replaces_the_job(world: ShellWorld) -> None:
    await running(world)
    # The options are part of the job's order, so the running one must be replaced.
    world.edit(EXPORT, "x", source={"options": {"failOnDataLoss": "false"}})
    await reconcile(world)
    assert world.journal[0] == "stop x-1"
    await reconcile(world)
    assert "start x-2" not in world.journal  # one at a time
    # The next job starts once the former pod has disappeared.
    del world.jobs.seen[X, 1]
    await settle(world)
    assert run_of(world)["number"] == 2
    assert order(world)["failOnDataLoss"] == "false"


async def test_unusable_new_spec_is_reported_while_the_job_continues(world: ShellWorld) -> None:
    await running(world)
    world.edit(EXPORT, "x", source={"userRef": {"name": "alice"}})
    for _ in range(2):
        await reconcile(world)
    assert "stop x-1" not in world.journal
    status, reason, text = world.condition(EXPORT, "x", "Ready")
    assert (status, reason) == ("False", "SourceUnusable")
    assert text == (
        "the new spec is not applied: User alice does not exist. Create it. Until then run 1 "
        "continues with the spec of generation 1"
    )
    # The job that continues commits as before.
    assert world.condition(EXPORT, "x", "Exporting")[:2] == ("True", "CatchingUp")
    assert [event.message for event in world.events.emitted[-1:]] == [text]
    assert world.events.reasons.count("SourceUnusable") == 1
    # The earlier spec is restored, which the job has already.
    world.edit(EXPORT, "x", source=None)
    await reconcile(world)
    assert ready(world) == ("True", "Running")
    assert run_of(world)["generation"] == world.known(EXPORT, "x")["metadata"]["generation"]
    assert "stop x-1" not in world.journal


async def test_end_of_a_job_without_its_new_spec_is_reported_as_such(world: ShellWorld) -> None:
    await running(world)
    world.edit(EXPORT, "x", source={"userRef": {"name": "alice"}})
    await reconcile(world)
    world.jobs.end(X, 1, JobReport(phase=ExportJobPhase.FAILED, message="no room"))
    assert await reconcile(world) == 0.0
    assert "no room" in world.condition(EXPORT, "x", "Ready")[2]
    # No job runs now, and the next one needs the new spec.
    await settle(world)
    status, reason, text = world.condition(EXPORT, "x", "Ready")
    assert (status, reason) == ("False", "SourceUnusable")
    assert "continues" not in text
    assert run_of(world)["number"] == 1


async def test_missing_broker_is_no_problem_of_a_spec_that_the_job_uses(world: ShellWorld) -> None:
    """A change that leaves the job as it is makes no new spec of it."""
    await running(world)
    world.edit(EXPORT, "x", suspend=False)
    await reconcile(world)
    for broker in list(world.services.state.brokers.values()):
        world.services.state.put_broker(dataclasses.replace(broker, fenced=True))
    await reconcile(world)
    assert ready(world) == ("True", "Running")
    assert run_of(world)["number"] == 1


async def test_joining_and_leaving_brokers_change_no_job(world: ShellWorld) -> None:
    await running(world)
    world.make_broker(2)
    await world.start_broker(2)
    await reconcile(world)
    # Fenced brokers do not change the order either: its bootstrap servers stay the same.
    for broker in list(world.services.state.brokers.values()):
        world.services.state.put_broker(dataclasses.replace(broker, fenced=True))
    await reconcile(world)
    assert "stop x-1" not in world.journal
    assert ready(world) == ("True", "Running")


async def test_a_table_taken_over_by_another_job_is_not_fought_for(world: ShellWorld) -> None:
    """The exit of TableTakenOver: suspend the Export, then resume it."""
    await running(world)
    text = "another job (j, epoch 9) has taken the table over"
    # Another writer committed to the table under a higher epoch.
    world.jobs.end(X, 1, JobReport(phase=ExportJobPhase.SUPERSEDED, message=text))
    await settle(world)
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "TableTakenOver")
    assert await reconcile(world) is None
    for suspended in (True, False):
        world.edit(EXPORT, "x", suspend=suspended)
        await settle(world)
    assert run_of(world)["number"] == 2


async def test_suspended_export_is_ready_and_stops_its_job(world: ShellWorld) -> None:
    await running(world)
    world.edit(EXPORT, "x", suspend=True)
    await reconcile(world)
    assert ready(world) == ("True", "Suspended")
    assert world.condition(EXPORT, "x", "Reconciling")[0] == "True"
    # Once the pod has disappeared, the suspension is complete.
    del world.jobs.seen[X, 1]
    await settle(world)
    assert world.condition(EXPORT, "x", "Reconciling")[0] == "False"
    assert run_of(world)["outcome"] == "Stopped"
    assert await reconcile(world) is None
    world.journal.clear()
    await reconcile(world)
    assert world.journal == []


async def test_an_export_without_its_topic_ends_its_job_and_reports_it(world: ShellWorld) -> None:
    """The exit of TopicNotFound is to make the Topic, and of TopicReplaced another Export."""
    await running(world)
    world.delete(TOPIC, "t")
    # The deletion of the topic queues its Exports at once.
    assert EXPORT.key(X) in world.services.queue._ready
    await reconcile(world)
    assert "stop x-1" in world.journal
    status, reason, text = world.condition(EXPORT, "x", "Ready")
    assert (status, reason) == ("False", "TopicNotFound")
    assert "the table keeps its rows" in text
    del world.jobs.seen[X, 1]
    await settle(world)
    # A Topic of the same name created later is another one, whose offsets begin at 0.
    world.make_topic()
    await settle(world)
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "TopicReplaced")
    assert "start x-2" not in world.journal
    world.make_export("y", table={"name": "db.u"})
    await reconcile(world, "y")
    assert "start y-1" in world.journal


async def test_an_export_waits_for_a_topic_that_is_not_there_yet(world: ShellWorld) -> None:
    world.make_export(topic="later")
    assert await reconcile(world) == PROBLEM_S
    assert ready(world) == ("False", "TopicNotFound")
    # Drop the wake-ups so far, to observe the one of the topic's creation.
    world.services.queue._ready.clear()
    world.make_topic("later")
    assert EXPORT.key(X) in world.services.queue._ready
    await reconcile(world)
    assert "start x-1" in world.journal


async def test_younger_of_two_exports_of_one_table_is_refused(world: ShellWorld) -> None:
    """The exit of TableTaken: one of the two is deleted."""
    world.make_export("a")
    world.make_export("x")
    await reconcile(world, "a")
    await reconcile(world, "x")
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "TableTaken")
    assert "the older Export a" in world.condition(EXPORT, "x", "Stalled")[2]
    assert [line for line in world.journal if line.startswith("start")] == ["start a-1"]
    # The deletion of the older Export wakes the younger one.
    world.services.queue._ready.clear()
    world.delete(EXPORT, "a")
    assert EXPORT.key(X) in world.services.queue._ready
    await reconcile(world, "x")
    assert "start x-1" in world.journal


async def test_dead_letter_table_conflicts_like_any_table(world: ShellWorld) -> None:
    fields = {"format": "json", "fields": "id INT"}
    world.make_export("a", table={"schema": fields})
    # The first Export writes dead letters to db.t_dead_letters, although no spec names it.
    world.make_export("x", table={"name": "db.t_dead_letters", "warehouse": "/lake/"})
    await reconcile(world, "a")
    await reconcile(world, "x")
    assert world.condition(EXPORT, "x", "Stalled")[1] == "TableTaken"
    world.make_export("y", table={"warehouse": "/other"})
    await reconcile(world, "y")
    assert "start y-1" in world.journal


async def test_a_refused_job_is_reported_and_retried(world: ShellWorld) -> None:
    """The exit of JobRefused: what the API server names is corrected."""
    world.jobs.refuses = "exceeded quota"
    world.make_export()
    assert await reconcile(world) == PROBLEM_S
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "JobRefused")
    world.journal.clear()
    await reconcile(world)
    # The retry starts the job under the same number.
    assert world.journal == ["start x-1"]  # an unchanged status is not written again
    world.jobs.refuses = ""
    await reconcile(world)
    world.jobs.run(X, 1, lag=0)
    await reconcile(world)
    assert ready(world) == ("True", "Running")


async def test_export_without_any_image_is_stalled(world: ShellWorld) -> None:
    """The exit of ImageMissing: the Export names one."""
    object.__setattr__(world.services, "export_image", "")
    world.make_export()
    assert await reconcile(world) == PROBLEM_S
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "ImageMissing")
    world.edit(EXPORT, "x", job={"image": "mine:1"})
    world.edit(CLUSTER, "main", exports={"images": ["mine"]})
    await reconcile(world)
    assert world.jobs.wanted[X].job["image"] == "mine:1"


TOKEN = {"name": "token", "secretKeyRef": {"name": "keys", "key": "token"}}


async def test_secret_is_used_only_while_it_is_offered(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit of SecretNotOffered: the Secret's owner offers it.

    When the owner withdraws the offer, the job ends within a minute, without any other change.
    """
    reconciler = ExportReconciler(world.services)
    key = world.key(EXPORT, "x")
    world.make_export(table={"catalogSecrets": [TOKEN]})
    assert await reconciler.reconcile(key) == PROBLEM_S
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "SecretNotOffered")
    make_secret(world, "keys", annotations={OFFERED_ANNOTATION: "Cluster"})
    assert await reconciler.reconcile(key) == PROBLEM_S
    assert (
        f"--overwrite secret keys {OFFERED_ANNOTATION}=Cluster,Export"
        in (world.condition(EXPORT, "x", "Ready")[2])
    )
    offer(world, "keys", "Cluster, Export")
    await reconciler.reconcile(key)
    world.jobs.run(X, 1, lag=0)
    await reconciler.reconcile(key)
    assert ready(world) == ("True", "Running")
    # The owner withdraws the offer while the job runs.
    offer(world, "keys", "User")
    # Skip the interval at which offers are checked again.
    later_s = time.monotonic() + SECRETS_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    await reconciler.reconcile(key)
    assert "stop x-1" in world.journal
    assert ready(world) == ("False", "SecretNotOffered")


async def test_a_job_continues_if_its_secret_is_deleted(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool may renew a Secret by deletion and creation. Its absence blocks only the next run."""
    reconciler = ExportReconciler(world.services)
    key = world.key(EXPORT, "x")
    make_secret(world, "keys", annotations={OFFERED_ANNOTATION: "Export"})
    world.make_export(table={"catalogSecrets": [TOKEN]})
    await reconciler.reconcile(key)
    world.jobs.run(X, 1, lag=0)
    await reconciler.reconcile(key)
    # The Secret is missing for a moment, which is no withdrawal of the offer.
    world.server.delete("user", SECRET, "keys")
    later_s = time.monotonic() + SECRETS_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    await reconciler.reconcile(key)
    assert "stop x-1" not in world.journal
    assert ready(world) == ("True", "Running")


async def test_policy_change_stops_a_running_job(world: ShellWorld) -> None:
    """The exit of PolicyRefused: the owner allows it."""
    world.make_export(job={"image": "mine:1"})
    assert await reconcile(world) == PROBLEM_S
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "PolicyRefused")
    world.edit(CLUSTER, "main", exports={"images": ["mine"]})
    await reconcile(world)
    world.jobs.run(X, 1, lag=0)
    await reconcile(world)
    assert ready(world) == ("True", "Running")
    # The owner of the Cluster withdraws the permission.
    world.edit(CLUSTER, "main", exports={})
    await reconcile(world)
    assert "stop x-1" in world.journal
    assert ready(world) == ("False", "PolicyRefused")


async def test_a_job_is_not_given_the_tiers_keys_that_the_cluster_was_not_offered(
    world: ShellWorld,
) -> None:
    s3 = {"region": "r", "buckets": ["bucket"], "credentialsSecretRef": {"name": "tier"}}
    world.edit(CLUSTER, "main", remoteStorage={"s3": s3})
    # An offer to Exports does not include the Cluster's use of the same Secret.
    make_secret(world, "tier", annotations={OFFERED_ANNOTATION: "Export"})
    world.make_export()
    await reconcile(world)
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "SecretNotOffered")
    offer(world, "tier", "Cluster")
    await reconcile(world)
    assert "start x-1" in world.journal


async def test_an_invalid_schedule_is_corrected(world: ShellWorld) -> None:
    """The exit of ScheduleInvalid."""
    world.make_export(schedule="61 * * * *")
    assert await reconcile(world) == PROBLEM_S
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "ScheduleInvalid")
    world.edit(EXPORT, "x", schedule="0 * * * *")
    await reconcile(world)  # the object is older than an hour, so a run is due
    assert ready(world) == ("False", "JobStarting")
    # After a successful run, the next one is due at the next full hour.
    world.jobs.end(X, 1, JobReport(phase=ExportJobPhase.DONE))
    await settle(world)
    assert 0 < (await reconcile(world) or 0) <= 3600
    assert ready(world) == ("True", "Scheduled")
    assert world.status(EXPORT, "x")["lastSuccessfulTime"]


async def test_unusable_source_is_reported_until_it_is_usable(world: ShellWorld) -> None:
    """The exit of SourceUnusable: a broker with the listener, a User, a tier."""
    world.make_export(
        source={
            "listener": "SECURE",
            "userRef": {"name": "alice"},
            "options": {"kafka.security.protocol": "SASL_SSL"},
        }
    )
    assert await reconcile(world) == PROBLEM_S
    assert "no serving broker has the listener SECURE" in world.condition(EXPORT, "x", "Ready")[2]
    # Each problem of the source is fixed in turn: listener, User, Secret.
    world.edit(EXPORT, "x", source={**world.known(EXPORT, "x")["spec"]["source"], "listener": None})
    await reconcile(world)
    assert "User alice does not exist. Create it" in world.condition(EXPORT, "x", "Ready")[2]
    world.make_user()
    await reconcile(world)
    assert "User alice has no Secret yet" in world.condition(EXPORT, "x", "Ready")[2]
    make_secret(world, "alice", labels=USER_SECRETS.labels)
    await reconcile(world)
    assert order(world)["kafka.sasl.username"] == "alice"


async def test_only_the_tier_is_queried_if_configured(world: ShellWorld) -> None:
    world.edit(CLUSTER, "main", remoteStorage=None)
    world.make_export(source={"tier": "remote"})
    await reconcile(world)
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "SourceUnusable")
    world.edit(CLUSTER, "main", remoteStorage={"filesystem": {"path": "/tier"}})
    await reconcile(world)
    assert order(world) == {"topic": "t", "tier": "remote", "path": "/tier"}


async def test_job_reads_the_encryption_keys_of_the_tier_from_a_file(world: ShellWorld) -> None:
    section = {"path": "/tier", "encryptionKeysSecretRef": {"name": "tier-keys"}}
    world.edit(CLUSTER, "main", remoteStorage={"filesystem": section})
    make_secret(world, "tier-keys", annotations={OFFERED_ANNOTATION: "Cluster"})
    world.make_export(source={"tier": "remote"})
    await reconcile(world)
    assert [(file.option, file.secret, file.key) for file in world.jobs.wanted[X].files] == [
        ("encryptionKeysLocation", "tier-keys", "encryptionKeys")
    ]
    assert order(world) == {"topic": "t", "tier": "remote", "path": "/tier"}


async def test_an_export_that_is_deleted_ends_its_job(world: ShellWorld) -> None:
    await running(world)
    world.delete(EXPORT, "x")
    assert await reconcile(world) is None
    assert world.journal == [f"forget {X}"]
    assert list(world.services.state.exports.all()) == []


async def test_deleted_export_with_foreign_finalizer_stops_its_job(world: ShellWorld) -> None:
    world.make_export(metadata={"finalizers": ["others/hold"]})
    await reconcile(world)
    world.delete(EXPORT, "x")
    world.journal.clear()
    assert await reconcile(world) is None
    assert world.journal == [f"forget {X}", "stop x-1"]


async def test_user_without_a_generated_secret_is_refused(world: ShellWorld) -> None:
    secure = {"kafka.security.protocol": "SSL"}
    world.make_user("out", authentication={"type": "oauth"})
    world.make_export(source={"userRef": {"name": "out"}, "options": secure})
    await reconcile(world)
    assert world.condition(EXPORT, "x", "Stalled")[:2] == ("True", "SourceUnusable")
    world.edit(USER, "out", authentication={"type": "tls"})
    # Credentials reach the job as references to the Secret, never as values.
    make_secret(world, "out", labels=USER_SECRETS.labels)
    await reconcile(world)
    files = world.jobs.wanted[X].files
    assert {(file.option, file.secret, file.key) for file in files} == {
        ("kafka.ssl.certificate.location", "out", "user.crt"),
        ("kafka.ssl.key.location", "out", "user.key"),
    }


async def test_export_of_many_topics_needs_no_topic(world: ShellWorld) -> None:
    """Its job lists the topics, and its tables have their ids."""
    spec = {"topics": {"pattern": "t.*"}, "table": {"name": "lake.{topic}"}}
    world.make_export(topic=None, **spec)
    world.make_export("y", topic=None, **spec)
    await reconcile(world)
    assert order(world)["subscribePattern"] == "t.*"
    assert "topicId" not in world.status(EXPORT, "x")
    # Another Export with the same template has other topics.
    await reconcile(world, "y")
    assert ready(world, "y")[1] == "JobStarting"


async def test_topics_are_selected_by_their_labels(world: ShellWorld) -> None:
    """A Topic that gets the label later is exported by the same job."""
    spec = {"topics": {"selector": {"matchLabels": {"lake": "yes"}}}}
    world.make_export(topic=None, table={"name": "lake.{topic}"}, **spec)
    await reconcile(world)
    assert ready(world) == ("False", "SourceUnusable")
    world.make_topic("labelled", metadata={"labels": {"lake": "yes", "other": "x"}})
    world.make_topic("unlabelled", metadata={"labels": {"lake": "no"}})
    await reconcile(world)
    assert order(world)["subscribe"] == "labelled"
    await reconcile(world)
    assert world.jobs.followed == {X: ("labelled",)}
    world.jobs.run(X, 1, lag=0)
    world.make_topic("later", metadata={"labels": {"lake": "yes"}})
    world.label(TOPIC, "unlabelled", lake="yes")
    await settle(world)
    assert world.jobs.followed == {X: ("labelled", "later", "unlabelled")}
    # Once no Topic has the label, the job continues with its last topics.
    for name in ("labelled", "later", "unlabelled"):
        world.label(TOPIC, name)
    await settle(world)
    assert world.jobs.followed == {X: ("labelled", "later", "unlabelled")}
    assert run_of(world)["number"] == 1
    assert "stop x-1" not in world.journal
