"""List of all users: complete or absent, within limits, oldest users first."""

from typing import Any

import pytest

from tests.unit.controller.controller_world import ControllerWorld
from tests.user_states import quota, user_states
from tidemark.wire import users as wire
from tidemark.wire.bounds import ANY
from tidemark.wire.control import FRAME_BYTES_MAX
from tidemark.wire.framing import encode_request
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.state import users as users_module
from tidemark_operator.controller.state.users import (
    RULE_BYTES_MAX,
    USERS_MAX,
    ClusterUsers,
    UserInfo,
)


def acl(name: str = "t", operation: int = 3) -> wire.Acl:
    return wire.Acl(
        resource_type=2,
        resource_name=name,
        pattern_type=3,
        host="*",
        operation=operation,
        permission=3,
    )


def user(name: str, **fields: Any) -> UserInfo:
    return UserInfo(key=f"ns/{name}", uid=name, username=name, generation=1, **fields)


def put(users: ClusterUsers, *infos: UserInfo) -> None:
    for info in infos:
        users.put(info, info.state(()))


def names(users: ClusterUsers) -> list[str]:
    return [state.name for state in users.fitting()[0]]


def test_no_users_are_pushed_before_every_existing_user_was_reconciled() -> None:
    """A user missing from the first state would be locked out."""
    world = ControllerWorld()
    users = world.state.users
    users.expect("ns/a")
    users.expect("ns/b")
    put(users, user("a"), user("c"))
    assert snapshot.users(world.state) is None
    # User b is deleted before it was reconciled, so the list is complete.
    users.drop("ns/b")
    pushed = snapshot.users(world.state)
    assert pushed is not None
    assert [user_.name for user_ in pushed[1].users] == ["a", "c"]


def test_unchanged_user_keeps_the_version() -> None:
    users = ClusterUsers()
    assert users.put(user("a"), user("a").state(()))
    version, fitting = users.version, users.fitting()
    assert not users.put(user("a"), user("a").state(()))
    assert users.version == version
    assert users.fitting() is fitting
    assert users.put(user("a"), user("a", acls=(acl(),)).state(()))
    assert users.version > version
    assert users.changed_at("ns/a") == users.version


def test_deleted_user_is_not_pushed() -> None:
    users = ClusterUsers()
    put(users, user("a"), user("b"))
    users.drop("ns/a")
    assert names(users) == ["b"]
    assert users.get("ns/a") is None
    version = users.version
    users.drop("ns/a")
    assert users.version == version


def test_oldest_users_stay_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "USERS_MAX", 2)
    users = ClusterUsers()
    put(users, *(user(name, created_ms=ms) for name, ms in (("new", 9), ("old", 1), ("mid", 5))))
    assert names(users) == ["mid", "old"]
    assert users.is_left_out("ns/new")
    # The deletion makes room for the next user.
    users.drop("ns/old")
    assert names(users) == ["mid", "new"]
    assert not users.is_left_out("ns/new")


def test_oldest_acls_stay_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "RULE_BYTES_MAX", 100)
    users = ClusterUsers()
    put(
        users,
        user("large", created_ms=2, acls=(acl("x" * 50), acl("y"))),
        user("old", created_ms=1, acls=(acl(),)),
        user("small", created_ms=3, acls=(acl(),)),
    )
    assert names(users) == ["old", "small"]
    assert users.is_left_out("ns/large")
    # Without its ACLs, the large user fits.
    put(users, user("large", created_ms=2))
    assert names(users) == ["large", "old", "small"]


def size(*states: wire.UserState) -> int:
    """Return the bytes of a frame with these users."""
    return len(encode_request(user_states(*states), 1, "c"))


# The largest names in bytes, with two bytes per character or one.
@pytest.mark.parametrize("name", ["t", "ü" * 249, "n" * 249])
def test_the_largest_state_fits_into_a_frame(name: str) -> None:
    scram = wire.ScramCredential(
        mechanism=2, iterations=8192, salt=bytes(32), stored_key=bytes(64), server_key=bytes(64)
    )
    largest = user("u" * 253).state((scram,))
    acls, quotas = (acl(name),) * 1000, (quota(name, name),) * 1000
    frame = user_states(user("u", acls=acls).state(()), quotas=quotas)
    assert len(encode_request(frame, 1, "c")) - size() < users_module._size(acls, quotas)
    users_bytes = USERS_MAX * (size(largest) - size())
    assert users_bytes + RULE_BYTES_MAX < FRAME_BYTES_MAX
    elements = RULE_BYTES_MAX // users_module._size((acl("t"),), ()) + USERS_MAX * 5
    assert elements < ANY.elements
