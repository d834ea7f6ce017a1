"""Context that a handler receives with its request."""

from collections.abc import Iterator
from typing import Any

from tests.user_states import user, user_states
from tidemark.wire.users import Operation
from tidemark_broker.admission.response_memory import ResponseBudget, ResponseMemory
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Call
from tidemark_broker.security.user_store import UserStore

NO_SERVICES: Any = None


def call(users: UserStore) -> Call:
    client = Client("10.0.0.1:1", "PLAINTEXT", users)
    return Call(NO_SERVICES, 0, client, ResponseMemory(ResponseBudget(1)))


async def test_names_are_not_read_without_authorization() -> None:
    def names() -> Iterator[str]:
        raise AssertionError("names were read")
        # Unreachable. It makes the function a generator, like the one over a request's topics.
        yield ""

    assert not await call(UserStore()).denied(Operation.READ, names())


async def test_topics_are_denied_one_by_one() -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW READ TOPIC a...")))
    denied = await call(users).denied(Operation.READ, ["a", "ab", "b", "b"])
    assert denied == {"b"}


def test_a_large_request_waits_only_briefly() -> None:
    small, large = call(UserStore()), call(UserStore())
    large.is_large = True
    assert (small.wait_s(3600), large.wait_s(3600), large.wait_s(0.1)) == (3600, 30, 0.1)
    assert (small.poll_s(3600), large.poll_s(3600), large.poll_s(0.1)) == (3600, 0.5, 0.1)
