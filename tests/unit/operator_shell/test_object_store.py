"""Memory of the store for thousands of objects: equal texts are stored once."""

import json

from tidemark_operator.kube.kinds import TOPIC, Json, Key
from tidemark_operator.objects.store import ObjectCache


def _answer(number: int) -> str:
    """Return an object as the API server sends it."""
    conditions = [{"type": "Ready", "status": "True", "message": "3 partitions, all in sync"}]
    return json.dumps(
        {
            "apiVersion": TOPIC.api_version,
            "kind": "Topic",
            "metadata": {
                "namespace": "ns",
                "name": f"t{number}",
                "uid": f"uid-{number}",
                "resourceVersion": str(number),
                "managedFields": [{}],
            },
            "spec": {"partitions": 3, "internal": False, "config": {"retention.ms": "1000"}},
            "status": {"conditions": conditions, "leftOver": None},
        }
    )


def test_objects_share_equal_strings() -> None:
    store = ObjectCache()
    for number in (1, 2):
        assert store.put(json.loads(_answer(number)))
    first, second = store.of_kind(TOPIC)
    expected = json.loads(_answer(1))
    # managedFields are dropped, because they are large and never read.
    del expected["metadata"]["managedFields"]
    assert first == expected
    # Identity, not equality: thousands of objects must not repeat the same strings.
    for one, other in zip(first["metadata"], second["metadata"], strict=True):
        assert one is other
    (ready,), (also,) = (item["status"]["conditions"] for item in (first, second))
    assert ready["message"] is also["message"]
    assert first["spec"]["config"]["retention.ms"] is second["spec"]["config"]["retention.ms"]


def _body(uid: str, version: int) -> Json:
    meta = {"namespace": "ns", "name": "t", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Topic", "metadata": meta}


class CacheListener:
    """Notifications of a listener."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def changed(self, body: Json) -> None:
        self.texts.append(f"{body['metadata']['uid']} changed")

    def gone(self, key: Key) -> None:
        self.texts.append(f"{key.name} gone")


def test_an_object_missing_in_a_list_is_deleted() -> None:
    """The response of an earlier write arrives after the list without the object."""
    store = ObjectCache()
    store.put(_body("one", 80))
    assert store.remove_missing(TOPIC, set(), 100) == [TOPIC.key("ns/t")]
    assert not store.put(_body("one", 90))
    # A new object with the same name has another uid.
    assert store.put(_body("other", 110))


def test_a_recreated_object_replaces_the_former_one() -> None:
    """The watch was interrupted, so that no event announced the deletion."""
    store, listener = ObjectCache(), CacheListener()
    store.put(_body("one", 80))
    store.listener = listener
    assert store.put(_body("other", 90))
    assert listener.texts == ["t gone", "other changed"]
    assert not store.put(_body("one", 95)), "a late answer"


def test_objects_of_a_restored_api_server_replace_newer_ones() -> None:
    """Versions are compared within one history only; deletions of another one count for nothing."""
    store = ObjectCache()
    store.put(_body("one", 80))
    # This deletion belongs to the history that the restore discarded.
    store.remove(_body("one", 81))
    store.put(_body("other", 90))
    known = store.reached(TOPIC)
    assert known == 90
    # A list at 85, below the known 90, reveals the restore.
    store.list_started(TOPIC, 85, known)
    assert store.put(_body("one", 80))
    assert store.remove_missing(TOPIC, {TOPIC.key("ns/t")}, 85) == []
    assert not store.put(_body("one", 79))
    store.list_started(TOPIC, 84, store.reached(TOPIC))
    assert store.remove_missing(TOPIC, set(), 84) == [TOPIC.key("ns/t")], (
        "it was made after the backup"
    )


def test_list_older_than_a_later_response_changes_nothing() -> None:
    store = ObjectCache()
    known = store.reached(TOPIC)
    store.put(_body("one", 90))
    store.list_started(TOPIC, 85, known)
    assert not store.put(_body("one", 80))
    assert store.remove_missing(TOPIC, set(), 85) == []


def test_restore_with_raised_versions_is_detected() -> None:
    """A restore of etcd may raise the next versions so that every watch restarts: the list is newer
    than all known versions, and its objects are older.
    """
    signs: list[str] = []
    store = ObjectCache(signs.append)
    store.put(_body("one", 80))
    store.list_started(TOPIC, 1_000, store.reached(TOPIC))
    assert store.list_item(TOPIC, _body("one", 70), 1_000)
    assert signs == ["topics Topic ns/t has its state before 80"]
    # The second page with the object reports nothing new.
    assert not store.list_item(TOPIC, _body("one", 70), 1_000)
    assert len(signs) == 1, "it is reported once"


def test_a_late_list_is_no_backup() -> None:
    """The response of a write overtook the next page of the list."""
    signs: list[str] = []
    store = ObjectCache(signs.append)
    store.list_started(TOPIC, 85, store.reached(TOPIC))
    store.put(_body("one", 90))
    assert not store.list_item(TOPIC, _body("one", 80), 85)
    assert signs == []


def test_an_answer_older_than_the_known_state_is_of_another_history() -> None:
    """The answer may follow a conflict. News that arrived during the request may well be newer."""
    signs: list[str] = []
    store = ObjectCache(signs.append)
    store.put(_body("one", 80))
    known = store.get(TOPIC.key("ns/t"))
    # The watch delivered version 81 while the read was in flight.
    store.put(_body("one", 81))
    assert not store.read(TOPIC, _body("one", 80), known)
    assert signs == []
    assert store.read(TOPIC, _body("one", 80), store.get(TOPIC.key("ns/t")))
    assert signs == ["topics Topic ns/t has its state before 81"]
