"""Authorization: each of Kafka's rules by itself, and all of them against a slow reference."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.user_states import user, user_states
from tidemark.wire.users import Acl, Operation, PatternType, Permission, ResourceType, UserState
from tidemark_broker.security import authorizer as module
from tidemark_broker.security.acls import WILDCARD
from tidemark_broker.security.authorizer import Authorizer

HOST = "10.0.0.1"
TOPIC = ResourceType.TOPIC


def authorizer(
    *users: UserState, if_none: bool = False, authorize: bool = True, **options: tuple[str, ...]
) -> Authorizer:
    states = user_states(*users, authorize=authorize, super_users=options.get("super_users", ()))
    return Authorizer(states, if_none=if_none)


def may(
    of: Authorizer,
    operation: Operation,
    name: str = "orders",
    *,
    kind: ResourceType = TOPIC,
    principal: str = "User:ann",
    host: str = HOST,
) -> bool:
    permissions = of.permissions(principal, host)
    return permissions is None or permissions.allows(operation, kind, name)


def test_everything_without_an_allowing_acl_is_denied() -> None:
    of = authorizer(user("ann", "ALLOW READ TOPIC orders"))
    assert may(of, Operation.READ)
    assert not may(of, Operation.WRITE)
    assert not may(of, Operation.READ, "other")
    assert not may(of, Operation.READ, kind=ResourceType.GROUP)
    assert not may(of, Operation.READ, principal="User:bob")


@pytest.mark.parametrize("granted", ["READ", "WRITE", "DELETE", "ALTER", "DESCRIBE", "ALL"])
def test_operations_that_imply_describe(granted: str) -> None:
    of = authorizer(user("ann", f"ALLOW {granted} TOPIC orders"))
    assert may(of, Operation.DESCRIBE)


@pytest.mark.parametrize("granted", ["CREATE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"])
def test_operations_that_do_not_imply_describe(granted: str) -> None:
    of = authorizer(user("ann", f"ALLOW {granted} TOPIC orders"))
    assert not may(of, Operation.DESCRIBE)


def test_alter_configs_implies_describe_configs() -> None:
    of = authorizer(user("ann", "ALLOW ALTER_CONFIGS TOPIC orders"))
    assert may(of, Operation.DESCRIBE_CONFIGS)


def test_denying_read_does_not_deny_describe() -> None:
    of = authorizer(user("ann", "ALLOW DESCRIBE TOPIC orders", "DENY READ TOPIC orders"))
    assert may(of, Operation.DESCRIBE)


def test_deny_overrides_allow_in_any_order() -> None:
    for pattern in ("orders", "ord...", "*"):
        # DENY with a literal, a prefixed and a wildcard pattern.
        of = authorizer(user("ann", "ALLOW READ TOPIC orders", f"DENY ALL TOPIC {pattern}"))
        assert not may(of, Operation.READ), pattern


def test_prefixed_and_wildcard_patterns() -> None:
    of = authorizer(user("ann", "ALLOW READ TOPIC ord..."), user("bob", "ALLOW READ TOPIC *"))
    # A prefix matches itself.
    assert may(of, Operation.READ, "ord")
    assert may(of, Operation.READ, "orders")
    assert not may(of, Operation.READ, "or")
    assert may(of, Operation.READ, "anything", principal="User:bob")


def test_an_acl_applies_only_to_its_host() -> None:
    of = authorizer(user("ann", "ALLOW READ TOPIC orders @10.0.0.1"))
    assert may(of, Operation.READ)
    assert not may(of, Operation.READ, host="10.0.0.2")


def test_an_acl_of_the_wildcard_principal_applies_to_every_user() -> None:
    # User:* in Kafka.
    of = authorizer(user("*", "DENY WRITE TOPIC orders"), user("ann", "ALLOW ALL TOPIC orders"))
    assert not may(of, Operation.WRITE)
    assert may(of, Operation.READ)


def test_super_users_may_do_everything() -> None:
    of = authorizer(user("ann", "DENY ALL TOPIC *"), super_users=("ann",))
    assert may(of, Operation.DELETE)
    assert not may(of, Operation.READ, principal="User:bob")


def test_everything_is_allowed_without_authorization() -> None:
    of = authorizer(user("ann", "DENY ALL TOPIC *"), authorize=False)
    assert may(of, Operation.DELETE)


def test_resources_without_an_acl_may_be_open() -> None:
    # allow.everyone.if.no.acl.found=true.
    of = authorizer(user("ann", "ALLOW READ TOPIC orders"), if_none=True)
    assert may(of, Operation.WRITE, "other", principal="User:bob")
    assert not may(of, Operation.READ, principal="User:bob"), "an ACL of another user is about it"


def test_the_cache_of_permissions_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    of = authorizer(user("ann", "ALLOW READ TOPIC orders"))
    first = of.permissions("User:ann", HOST)
    assert of.permissions("User:ann", HOST) is first
    # Three more clients fill the cache of three, so the first one is evicted.
    for number in range(3):
        of.permissions("User:ann", f"10.0.1.{number}")
    assert len(of._kept) == 3
    assert of.permissions("User:ann", HOST) is not first
    assert may(of, Operation.READ)


NAMES = ["a", "ab", "abc", "b", "*", ""]
ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    host=st.sampled_from([WILDCARD, HOST, "10.0.0.2"]),
    operation=st.sampled_from(list(Operation)[1:]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
USERS = st.dictionaries(
    st.sampled_from(["ann", "bob", "*"]), st.lists(ACLS, max_size=6).map(tuple), max_size=3
)
DESCRIBES = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def reference(
    users: dict[str, tuple[Acl, ...]],
    who: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    if_none: bool,
) -> bool:
    """Apply the rules one after another to all ACLs."""

    def about(acl: Acl) -> bool:
        if acl.resource_type != kind:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, "*")

    resource = [(whose, acl) for whose, acls in users.items() for acl in acls if about(acl)]
    # Kafka's order: resources without any ACL, then DENY, then ALLOW.
    if not resource:
        return if_none
    applicable = [acl for whose, acl in resource if whose in (who, "*") and acl.host in ("*", HOST)]
    if any(
        acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL)
        for acl in applicable
    ):
        return False
    # Implied operations count for ALLOW only.
    sufficient = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        sufficient |= DESCRIBES
    if operation is Operation.DESCRIBE_CONFIGS:
        sufficient.add(Operation.ALTER_CONFIGS)
    return any(
        acl.permission == Permission.ALLOW and acl.operation in sufficient for acl in applicable
    )


@settings(max_examples=examples(500))
@given(
    users=USERS,
    who=st.sampled_from(["ann", "bob", "eve"]),
    operation=st.sampled_from(list(Operation)[2:]),
    kind=st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    name=st.sampled_from(["a", "ab", "abc", "abcd", "b", "c"]),
    if_none=st.booleans(),
)
def test_decisions_equal_the_reference(
    users: dict[str, tuple[Acl, ...]],
    who: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    if_none: bool,
) -> None:
    states = (UserState(name=name_, scram=(), acls=acls) for name_, acls in users.items())
    decided = may(
        authorizer(*states, if_none=if_none), operation, name, kind=kind, principal=f"User:{who}"
    )
    assert decided == reference(users, who, operation, kind, name, if_none)
