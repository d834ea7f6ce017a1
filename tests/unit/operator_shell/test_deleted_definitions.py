"""A kind whose definition is being deleted: its objects and their data are retained."""

import asyncio
import contextlib

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.unit.operator_shell.shell_world import NAMESPACE
from tidemark_operator.kube import definitions as definition_reads
from tidemark_operator.kube.errors import ApiServerUnavailable, Forbidden
from tidemark_operator.kube.kinds import TOPIC, USER, Json, Key, Kind, key_of
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.term.object_follower import DefinitionWatch

FINALIZER = "tidemark.dev/topic"


class DefinitionWorld:
    """An API server, a store that watches it, and an observer of its deletions."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.api = FakeKubeApi(self.server)
        self.store = ObjectCache()
        self.store.listener = self
        self.delivered: list[tuple[Key, bool]] = []
        self.news_came = asyncio.Event()
        self.news: list[str] = []
        self.leaving_sets: list[frozenset[str]] = []
        self.watch = DefinitionWatch(
            self.store,
            NAMESPACE,
            self.deliver,
            lambda: self.leaving_sets.append(self.watch.leaving),
        )

    def deliver(self, key: Key, gone: bool) -> None:
        self.delivered.append((key, gone))
        self.news_came.set()

    def changed(self, body: Json) -> None:
        deleting = " deleting" if body["metadata"].get("deletionTimestamp") else ""
        self.news.append(f"{body['metadata']['name']}{deleting}")

    def gone(self, key: Key) -> None:
        self.news.append(f"{key.name} gone")

    def make(self, kind: Kind, name: str, *finalizers: str) -> Json:
        meta = {"name": name, "finalizers": list(finalizers)}
        body = self.server.create("user", kind, NAMESPACE, {"metadata": meta, "spec": {}})
        self.store.put(body)
        return body

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object as a user, and deliver the watch event."""
        body = self.server.delete("user", kind, name)
        if self.server.find(kind, name) is None:
            self.store.remove(body)
        else:
            self.store.put(body)

    async def look(self) -> None:
        await self.watch._look(self.api)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DefinitionWorld:
    monkeypatch.setattr(definition_reads, "LAG_S", 0.0)
    made = DefinitionWorld()
    made.store.on_unconfirmed = lambda: None
    return made


async def test_a_deletion_counts_once_the_kind_is_known_to_stay(world: DefinitionWorld) -> None:
    world.make(TOPIC, "t", FINALIZER)
    world.make(USER, "alice")
    world.delete(TOPIC, "t")
    world.delete(USER, "alice")
    assert world.news == ["t", "alice", "t"]  # news of it, and not that it is being deleted
    # The definitions are not being deleted, so the deletions are genuine.
    await world.look()
    assert world.news[3:] == ["t deleting", "alice gone"]
    assert sorted(world.delivered, key=str) == [
        (TOPIC.key(f"{NAMESPACE}/t"), False),
        (USER.key(f"{NAMESPACE}/alice"), True),
    ]
    assert not world.store.kinds_to_check()
    assert world.leaving_sets == []


async def test_objects_deleted_with_their_definition_stay_in_the_cache(
    world: DefinitionWorld,
) -> None:
    topic, user = world.make(TOPIC, "t", FINALIZER), world.make(USER, "alice")
    # kubectl delete crd: the API server deletes every object before the definition.
    world.server.leaving_kinds = {"Topic", "User"}
    world.delete(TOPIC, "t")
    world.delete(USER, "alice")
    await world.look()
    await world.look()
    assert not any("gone" in item or "deleting" in item for item in world.news)
    assert world.delivered == []
    for body in (topic, user):
        cached = world.store.get(key_of(body))
        assert cached is not None
        assert "deletionTimestamp" not in cached["metadata"]
    assert not world.store.is_deletion_unconfirmed(key_of(topic))
    assert world.store.is_deletion_unconfirmed(key_of(user))
    assert world.leaving_sets == [frozenset({"topics.tidemark.dev", "users.tidemark.dev"})]
    # An administrator removes the finalizers, and a relist then has no object of the kind.
    world.server.replace("person", TOPIC, {**world.server.get("p", TOPIC, "t"), "spec": {"a": 1}})
    for kind in (TOPIC, USER):
        assert world.store.remove_missing(kind, set(), world.server.version + 1) == []
    await world.look()
    assert world.store.is_deletion_unconfirmed(key_of(topic))
    assert not any("gone" in item for item in world.news)


async def test_without_the_right_to_read_definitions_a_creation_is_tried(
    world: DefinitionWorld,
) -> None:
    world.api.refuses_definitions = Forbidden(403, "definitions are not for it")
    for name in ("t", "u"):
        world.make(TOPIC, name, FINALIZER)
    world.delete(TOPIC, "t")
    # A dry-run creation succeeds while the kind is served, and fails while it is leaving.
    await world.look()
    assert world.news[-1] == "t deleting"
    world.server.leaving_kinds = {"Topic"}
    world.delete(TOPIC, "u")
    await world.look()
    assert world.news[-1] == "u"
    assert world.leaving_sets == [frozenset({"topics.tidemark.dev"})]


async def test_objects_created_after_a_new_definition_replace_the_former_ones(
    world: DefinitionWorld,
) -> None:
    """The former objects do not count as deleted by a user."""
    former = world.make(USER, "alice")
    world.server.leaving_kinds = {"User"}
    world.delete(USER, "alice")
    await world.look()
    # The definition is installed again, without the former objects.
    world.server.leaving_kinds = set()
    await world.look()
    assert world.leaving_sets[-1] == frozenset()
    assert world.store.is_deletion_unconfirmed(key_of(former))  # no user has requested its deletion
    now = world.make(USER, "alice")
    cached = world.store.get(key_of(now))
    assert cached is not None
    assert cached["metadata"]["uid"] == now["metadata"]["uid"]
    assert world.store.deleted_at(former["metadata"]["uid"]) == 0
    assert not world.store.is_deletion_unconfirmed(key_of(now))
    world.delete(USER, "alice")
    await world.look()
    # A later deletion by a user counts as usual.
    assert world.news[-1] == "alice gone"


async def test_recreated_object_waits_until_the_definition_is_checked(
    world: DefinitionWorld,
) -> None:
    former = world.make(USER, "alice")
    world.delete(USER, "alice")
    now = world.make(USER, "alice")
    cached = world.store.get(key_of(now))
    assert cached is not None
    # Until then, the cache shows the former object.
    assert cached["metadata"]["uid"] == former["metadata"]["uid"]
    await world.look()
    assert world.news == ["alice", "alice gone", "alice"]
    assert world.store.deleted_at(former["metadata"]["uid"]) > 0
    assert world.delivered == [(key_of(now), False)]


async def test_unreadable_definitions_keep_data_and_revoke_users(world: DefinitionWorld) -> None:
    topic = world.make(TOPIC, "t", FINALIZER)
    world.make(USER, "alice")
    world.delete(TOPIC, "t")
    world.delete(USER, "alice")
    world.api.refuses_definitions = Forbidden(403, "definitions are not for it")
    # The API server is unreachable: neither a deletion of data nor of a user is decided.
    world.api.refuses_creation = ApiServerUnavailable(503, "away")
    await world.look()
    assert world.delivered == []
    # Without both rights the question stays open. Access is revoked, data is kept.
    text = 'topics.tidemark.dev is forbidden: User "op" cannot create resource "topics"'
    world.api.refuses_creation = Forbidden(403, text)
    await world.look()
    assert world.delivered == [(USER.key(f"{NAMESPACE}/alice"), True)]
    assert "deletionTimestamp" not in world.store.get(key_of(topic))["metadata"]  # type: ignore[index]
    # A refusal by a webhook proves that the kind is served: the deletion is genuine.
    world.api.refuses_creation = Forbidden(403, "admission webhook x denied the request")
    await world.look()
    assert world.delivered[1:] == [(key_of(topic), False)]


async def test_the_operators_own_deletions_are_not_questioned(world: DefinitionWorld) -> None:
    body = world.make(TOPIC, "t", FINALIZER)
    # The operator marks the objects that it deletes itself.
    world.store.confirm_deletion(body["metadata"]["uid"])
    world.delete(TOPIC, "t")
    assert world.news[-1] == "t deleting"
    assert not world.store.kinds_to_check()


async def test_watch_checks_definitions_as_soon_as_an_object_is_deleted(
    world: DefinitionWorld,
) -> None:
    task = asyncio.create_task(world.watch.run(world.api))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    world.make(TOPIC, "t", FINALIZER)
    world.delete(TOPIC, "t")
    async with asyncio.timeout(10):
        await world.news_came.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
