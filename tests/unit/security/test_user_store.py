"""The store of users. Unknown users must not be distinguishable from known ones."""

from tests.user_states import user, user_states
from tidemark.wire.users import Operation, ResourceType, UserState
from tidemark_broker.security.user_store import UserStore


def store(*users: UserState) -> UserStore:
    made = UserStore()
    made.apply(user_states(*users))
    return made


def test_nothing_is_authorized_before_users_are_known() -> None:
    fresh = UserStore()
    assert not fresh.known
    assert fresh.permissions("User:ann", "h") is None


def test_each_state_replaces_the_former_one() -> None:
    made = store(user("ann", "ALLOW READ TOPIC t", password="x"))
    of_ann = made.credential("ann", 1)
    assert made.is_current("ann", of_ann)
    # Ann is deleted: her open connections are no longer current and her ACLs do not apply.
    made.apply(user_states(user("bob", password="y")))
    assert made.known
    assert not made.is_current("ann", of_ann)
    permissions = made.permissions("User:ann", "h")
    assert permissions is not None
    assert not permissions.allows(Operation.READ, ResourceType.TOPIC, "t")


def test_a_new_credential_invalidates_the_former_one() -> None:
    made = store(user("ann", password="x"))
    before = made.credential("ann", 2)
    made.apply(user_states(user("ann", password="x")))
    assert not made.is_current("ann", before)


def test_an_unknown_user_looks_like_a_known_one() -> None:
    ann, bob = user("ann", password="x"), user("bob", password="y")
    made, other_store = store(ann, bob), store(bob, ann)
    # The first SCRAM message has the salt and the iterations. For an unknown name both must look
    # real, and be the same at each attempt.
    for mechanism, size in ((1, 32), (2, 64)):
        invented = made.credential("eve", mechanism)
        known = made.credential("ann", mechanism)
        assert invented.iterations == known.iterations
        assert len(invented.salt) == len(known.salt)
        assert len(invented.stored_key) == size
        assert invented == other_store.credential("eve", mechanism), "the same on every broker"
        assert invented.salt != made.credential("mallory", mechanism).salt
        assert not invented.is_of("")


def test_the_salt_of_an_unknown_user_cannot_be_computed() -> None:
    """Otherwise a client could compute it and so recognise unknown names."""
    ann = user("ann", password="x")
    one, other = UserStore(), UserStore()
    one.apply(user_states(ann, strangers_key=b"a secret of one cluster"))
    other.apply(user_states(ann, strangers_key=b"a secret of another"))
    assert one.credential("eve", 1).salt != other.credential("eve", 1).salt


def test_the_salt_of_an_unknown_user_is_constant() -> None:
    """A salt that changed with the first or the last user would reveal unknown names."""
    ann = user("ann", password="x")
    before = store(ann).credential("eve", 1).salt
    for users in ((ann, user("aaa", password="y")), (ann, user("zzz", password="z"))):
        assert store(*users).credential("eve", 1).salt == before
    assert store(user("bob", password="y")).credential("eve", 1).salt == before


def test_passwords_of_unknown_users_are_checked_with_all_mechanisms_in_use() -> None:
    """The mechanisms take different times. If unknown users always had the same one, the time would
    reveal them."""
    made = store(user("old", password="x", mechanisms=(1,)), user("new", password="y"))
    kinds = {made.password_credential(f"stranger{number}").mechanism for number in range(50)}
    assert kinds == {1, 2}


def test_a_password_is_checked_with_the_users_own_mechanism() -> None:
    made = store(user("old", password="x", mechanisms=(1,)), user("new", password="y"))
    assert made.password_credential("old").mechanism == 1
    assert made.password_credential("old").is_of("x")
    assert made.password_credential("new").mechanism == 2
    assert not made.password_credential("new").is_of("x")
    assert not made.password_credential("eve").is_of("y")


def test_a_credential_of_an_unknown_mechanism_is_ignored() -> None:
    ann = user("ann", password="x", mechanisms=(1,))
    (known,) = ann.scram
    strange = UserState(
        name="ann",
        scram=(type(known)(mechanism=9, iterations=1, salt=b"", stored_key=b"", server_key=b""),),
        acls=(),
    )
    assert not store(strange).credential("ann", 1).is_of("x")
