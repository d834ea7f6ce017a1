"""A client without progress is named, and so is a group without any."""

from tests.histories.events import HistoryRecorder
from tests.histories.plan import MEMBER, PRODUCER, READER, PlannedClient, RoundPlan
from tests.histories.workload import idle_units

PLAN = RoundPlan(
    1,
    (
        PlannedClient("plain", PRODUCER),
        PlannedClient("reader", READER),
        PlannedClient("m0", MEMBER, group="g"),
        PlannedClient("m1", MEMBER, group="g"),
    ),
    (),
    1.0,
)


def test_only_results_of_a_clients_purpose_are_progress() -> None:
    recorder = HistoryRecorder(100)
    assert idle_units(PLAN, recorder.events) == {"plain", "reader", "g"}
    # An unknown outcome, an empty poll, a query and an unanswered commit are no progress.
    recorder.invoke("plain.1", "send").info()
    recorder.invoke("reader.1", "poll").ok(records={})
    recorder.invoke("m0.1", "committed").ok(offsets={})
    recorder.invoke("m1.2", "commit")
    assert idle_units(PLAN, recorder.events) == {"plain", "reader", "g"}
    recorder.invoke("plain.2", "send").ok(offset=1)
    recorder.invoke("reader.1", "poll").ok(records={"a-0": [(0, "v")]})
    assert idle_units(PLAN, recorder.events) == {"g"}
    recorder.invoke("m1.3", "commit").ok()
    assert idle_units(PLAN, recorder.events) == set()
