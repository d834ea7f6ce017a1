"""Health, settings, Event aggregation, latest objects, storage locations, frames."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tidemark.tier.stores.config import location_of, moved
from tidemark.wire import control, framing
from tidemark.wire.streams import read_frame
from tidemark_operator.health import Echoes, Pulse, verdict
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    error_of,
)
from tidemark_operator.kube.kinds import TOPIC, Key, Kind, ObjectList
from tidemark_operator.listener.frames import decode_request
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects import store
from tidemark_operator.objects.client import ObjectClient, take_list
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.settings import BadSettings, BindAddress, parse_arguments, settings_of

# ---------------------------------------------------------------- health


def pulse(**changes: Any) -> Pulse:
    fields: dict[str, Any] = {"leads": True, "since_pass_s": 0.0, "head_age_s": 0.0, "depth": 0}
    return Pulse(**(fields | changes))


def test_idle_leader_is_healthy_without_a_time_limit() -> None:
    assert verdict(pulse(since_pass_s=10_000.0), 120.0)[0]


def test_stuck_key_or_stuck_queue_is_unhealthy() -> None:
    assert not verdict(pulse(head_age_s=121.0), 120.0)[0]
    assert not verdict(pulse(depth=3, since_pass_s=121.0), 120.0)[0]


def test_standby_is_healthy() -> None:
    assert verdict(pulse(leads=False, head_age_s=500.0), 120.0)[0]


def test_leader_without_a_term_is_healthy_while_a_condition_explains_it() -> None:
    assert verdict(pulse(without_term_s=119.0), 120.0)[0]
    assert not verdict(pulse(without_term_s=121.0), 120.0)[0]
    assert verdict(pulse(without_term_s=10_000.0, excuse="waiting for a Cluster"), 120.0)[0]


def test_write_without_a_watch_event_is_reported() -> None:
    now = [100.0]
    echoes = Echoes(lambda: now[0])
    write_started_s = echoes.begins()
    now[0] = 101.0
    echoes.delivered("Topic")  # the event precedes the response of the write
    echoes.wrote("Topic", write_started_s)
    assert echoes.silent() is None
    echoes.wrote("Broker", echoes.begins())
    now[0] = 150.0
    # The first unanswered write counts, not the latest one.
    echoes.wrote("Broker", echoes.begins())
    now[0] = 222.0
    assert echoes.silent() == ("Broker", 121.0)
    well, why = verdict(pulse(silent=echoes.silent()), 120.0)
    assert not well
    assert "the watch of Broker objects has been silent for 121 s although an event is due" in why
    echoes.delivered("Broker")
    assert echoes.silent() is None


# ---------------------------------------------------------------- settings


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "operator.json"
    file.write_text(json.dumps({"namespace": "a", "control": "127.0.0.1:7", "lease-duration-s": 4}))
    found = parse_arguments(["--config", str(file), "--namespace", "b"])
    assert found.namespace == "b"
    assert found.control == BindAddress(host="127.0.0.1", port=7)
    assert found.lease_times.duration_s == 4.0


def test_settings_that_cannot_work_are_refused_by_name() -> None:
    for values, name in (
        ({"metrics": "nonsense"}, "nonsense"),
        ({"lease_duration_s": "soon"}, "lease-duration-s"),
        ({"lease_duration_s": 0}, "lease-duration-s"),
        ({"session_timeout_s": 0}, "session-timeout-s"),
        ({"session_timeout_s": "nan"}, "session-timeout-s"),
        # In ms it would not fit into the response to a registration.
        ({"session_timeout_s": 3e6}, "session-timeout-s"),
        ({"suspect_timeout_s": 0.5}, "suspect-timeout-s"),
        ({"suspect_timeout_s": "inf"}, "suspect-timeout-s"),
        ({"spark_applications": "maybe"}, "spark-applications: 'maybe' is neither"),
        ({"colour": "red"}, "colour"),
    ):
        with pytest.raises(BadSettings, match=name):
            settings_of(values)
    assert settings_of({"suspect_timeout_s": 0}).suspect_timeout_s == 0
    assert settings_of({"spark_applications": True}).spark_applications


def test_formatted_address_parses_to_itself() -> None:
    for text in ("127.0.0.1:0", "[::1]:9000"):
        assert str(BindAddress.parse(text)) == text


# ---------------------------------------------------------------- objects


def topic(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", "resourceVersion": str(version), "uid": uid}
    return {"apiVersion": "tidemark.dev/v1alpha1", "kind": "Topic", "metadata": meta}


def test_older_or_equal_version_is_no_change() -> None:
    objects = ObjectCache()
    assert objects.put(topic("a", 10))
    assert not objects.put(topic("a", 10))
    assert not objects.put(topic("a", 9))
    assert objects.put(topic("a", 11))


def test_a_deletion_counts_only_for_the_object_that_was_deleted() -> None:
    objects = ObjectCache()
    objects.put(topic("a", 10, uid="new"))
    assert not objects.remove(topic("a", 9, uid="old"))
    assert objects.get(Key("Topic", "n", "a")) is not None
    assert objects.remove(topic("a", 10, uid="new"))


def test_the_answer_to_a_write_does_not_bring_back_a_deleted_object() -> None:
    """A late answer after the deletion would bring a user back until the next list."""
    objects = ObjectCache()
    objects.put(topic("a", 10))
    assert objects.remove(topic("a", 12))
    assert not objects.put(topic("a", 11))
    assert objects.get(Key("Topic", "n", "a")) is None
    assert objects.put(topic("a", 13, uid="made again"))


def test_a_limited_number_of_deleted_objects_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "DELETED_MAX", 5)
    objects = ObjectCache()
    for number in range(50):
        objects.remove(topic("a", number, uid=f"u{number}"))
    assert len(objects._deleted) == 5


async def test_an_object_created_during_a_request_remains() -> None:
    # The read races with the deletion of the object and the creation of another one.
    objects = ObjectCache()
    objects.put(topic("a", 10))

    class Api:
        async def get(self, *_: object) -> Any:
            objects.remove(topic("a", 11))
            objects.put(topic("a", 12, uid="made again"))
            raise NotFound(404, "gone")

    api: Any = Api()
    await ObjectClient(api, objects, Metrics(), Echoes(time.monotonic)).refresh(
        Key("Topic", "n", "a")
    )
    assert objects.get(Key("Topic", "n", "a")) == topic("a", 12, uid="made again")


class Pages:
    """API whose lists have one object per page."""

    def __init__(self, listed: ObjectList, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._listed = listed
        self._meanwhile = meanwhile

    async def pages(self, kind: Kind, namespace: str) -> AsyncIterator[ObjectList]:
        self._meanwhile()
        for body in self._listed:
            yield ObjectList([body], resource_version=self._listed.resource_version)


async def test_a_full_list_reports_added_changed_and_deleted_objects() -> None:
    objects = ObjectCache()
    for body in (topic("same", 1), topic("changed", 2), topic("gone", 3)):
        objects.put(body)
    listed = ObjectList(
        [topic("same", 1), topic("changed", 5), topic("appeared", 6)], resource_version=6
    )
    found = await take_list(Pages(listed), objects, TOPIC, "n")  # type: ignore[arg-type]
    assert {key.name for key in found} == {"changed", "gone", "appeared"}
    assert {key.name for key in objects.keys(TOPIC)} == {"same", "changed", "appeared"}


async def test_changes_during_a_list_are_preserved() -> None:
    objects = ObjectCache()
    objects.put(topic("deleted", 1))
    listed = ObjectList([topic("deleted", 1)], resource_version=4)

    # Both changes happen after the snapshot of the list was taken.
    def meanwhile() -> None:
        objects.put(topic("made", 5))
        objects.remove(topic("deleted", 6))

    pages: Any = Pages(listed, meanwhile)
    assert await take_list(pages, objects, TOPIC, "n") == []
    assert {key.name for key in objects.keys(TOPIC)} == {"made"}


# ---------------------------------------------------------------- storage


S3: dict[str, Any] = {
    "endpoint": "http://127.0.0.1:9000",
    "region": "r",
    "buckets": ["a", "b"],
    "credentialsSecretRef": {"name": "s"},
}


def test_the_recorded_location_holds_no_credentials() -> None:
    assert location_of(None) is None
    assert "credentialsSecretRef" not in json.dumps(location_of({"s3": S3}))


def test_buckets_may_be_added_and_nothing_else_may_move() -> None:
    here = location_of({"s3": S3}) or {}
    # Each change, by the text of the refusal. Buckets may be added only at the end.
    cases: dict[str, dict[str, Any]] = {
        "": {"buckets": ["a", "b", "c"]},
        "endpoint": {"endpoint": "http://127.0.0.1:9001"},
        "prefix": {"prefix": "p"},
        "bucket b was dropped": {"buckets": ["a"]},
        "stay the first": {"buckets": ["b", "a"]},
    }
    for why, change in cases.items():
        found = moved(here, location_of({"s3": S3 | change}) or {})
        assert (why in found) if why else found == ""
    azure = {"account": "acc", "containers": ["a", "b"]}
    there = location_of({"azure": azure}) or {}
    assert "account" in moved(there, location_of({"azure": azure | {"account": "other"}}) or {})
    assert "container b" in moved(
        there, location_of({"azure": azure | {"containers": ["a"]}}) or {}
    )
    folder = location_of({"filesystem": {"path": "/tier"}}) or {}
    assert "kind" in moved(here, folder)
    assert moved(folder, folder) == ""


# ---------------------------------------------------------------- errors and frames


def test_http_answers_become_errors_and_5xx_has_an_unknown_effect() -> None:
    body = json.dumps({"message": "no"}).encode()
    for status, kind in (
        (409, Conflict),
        (403, Forbidden),
        (422, Invalid),
        (503, ApiServerUnavailable),
    ):
        error = error_of(status, body, "3", "PUT /x")
        assert type(error) is kind
        assert "no" in str(error)
    late = error_of(429, b"<html>", "3", "PUT /x")
    assert isinstance(late, ApiServerUnavailable)
    assert late.retry_after_s == 3.0
    # A hostile or broken Retry-After must not stop the operator.
    for text, seconds in (("nan", 0.0), ("inf", 30.0), ("-1", 0.0), ("Mon, 01 Jan", 0.0)):
        hostile = error_of(503, body, text, "GET /x")
        assert isinstance(hostile, ApiServerUnavailable)
        assert hostile.retry_after_s == seconds


async def frame_of(data: bytes, limit: int = 1000) -> bytes | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_frame(reader, limit)


async def test_complete_frames_are_decoded_and_malformed_ones_refused() -> None:
    request = control.AttachRequest(broker_id=1, broker_epoch=7)
    frame_bytes = framing.encode_request(request, 5, "broker-1")
    frame = await frame_of(frame_bytes)
    assert frame is not None
    received = decode_request(frame)
    assert (received.correlation_id, received.request) == (5, request)
    assert await frame_of(b"") is None
    # Truncated length and body, a length above the limit, a negative one, and HTTP.
    for data in (
        b"\x00\x00",
        frame_bytes[:-1],
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"GET / HTTP",
    ):
        with pytest.raises(framing.FrameError):
            await frame_of(data)


def test_requests_that_the_controller_does_not_serve_are_refused() -> None:
    answer = control.AttachResponse(error_code=int(ErrorCode.none), controller_epoch=1)
    with pytest.raises(framing.FrameError, match="not supported"):
        decode_request(framing.encode_response(answer, 1)[4:] + b"\x00" * 8)
