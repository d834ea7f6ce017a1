"""Store of users, and the indistinguishability of unknown users."""

from tests.user_states import user, user_states
from tidemark.wire.users import UserState
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.security.user_store import UserStore


def store(*users: UserState) -> UserStore:
    made = UserStore()
    made.apply(user_states(*users))
    return made


def test_before_users_are_known_acls_do_not_decide() -> None:
    fresh = UserStore()
    assert not fresh.known
    assert fresh.permissions("User:ann", "h") is None


def test_each_state_is_the_whole_truth() -> None:
    made = store(user("ann", "ALLOW READ TOPIC t", password="x"))
    of_ann = made.credential("ann", 1)
    assert made.is_current("ann", of_ann)
    made.apply(user_states(user("bob", password="y")))
    assert made.known
    assert not made.is_current("ann", of_ann)
    permissions = made.permissions("User:ann", "h")
    assert permissions is not None
    assert not permissions.allows(Operation.READ, ResourceType.TOPIC, "t")


def test_another_password_is_another_credential() -> None:
    made = store(user("ann", password="x"))
    before = made.credential("ann", 2)
    made.apply(user_states(user("ann", password="x")))
    assert not made.is_current("ann", before)


def test_a_stranger_looks_like_a_user_and_always_the_same() -> None:
    ann, bob = user("ann", password="x"), user("bob", password="y")
    made, elsewhere = store(ann, bob), store(bob, ann)
    for mechanism, size in ((1, 32), (2, 64)):
        stranger = made.credential("eve", mechanism)
        known = made.credential("ann", mechanism)
        assert stranger.iterations == known.iterations
        assert len(stranger.salt) == len(known.salt)
        assert len(stranger.stored_key) == size
        assert stranger == elsewhere.credential("eve", mechanism), "on every broker"
        assert stranger.salt != made.credential("mallory", mechanism).salt
        assert not stranger.is_of("")


def test_the_salt_of_a_stranger_is_not_to_be_guessed() -> None:
    """Else it would tell who is none."""
    ann = user("ann", password="x")
    one, other = UserStore(), UserStore()
    one.apply(user_states(ann, strangers_key=b"a secret of one cluster"))
    other.apply(user_states(ann, strangers_key=b"a secret of another"))
    assert one.credential("eve", 1).salt != other.credential("eve", 1).salt


def test_the_salt_of_an_unknown_user_is_constant() -> None:
    """A salt that changed with the first and the last user would reveal which names are unknown."""
    ann = user("ann", password="x")
    before = store(ann).credential("eve", 1).salt
    for users in ((ann, user("aaa", password="y")), (ann, user("zzz", password="z"))):
        assert store(*users).credential("eve", 1).salt == before
    assert store(user("bob", password="y")).credential("eve", 1).salt == before


def test_passwords_of_strangers_are_checked_by_all_kinds_that_users_have() -> None:
    """The two take different times: only users of the older one were as quick as it is."""
    made = store(user("old", password="x", mechanisms=(1,)), user("new", password="y"))
    kinds = {made.password_credential(f"stranger{number}").mechanism for number in range(50)}
    assert kinds == {1, 2}


def test_a_password_is_checked_by_the_users_own_kind() -> None:
    made = store(user("old", password="x", mechanisms=(1,)), user("new", password="y"))
    assert made.password_credential("old").mechanism == 1
    assert made.password_credential("old").is_of("x")
    assert made.password_credential("new").mechanism == 2
    assert not made.password_credential("new").is_of("x")
    assert not made.password_credential("eve").is_of("y")


def test_a_credential_of_an_unknown_mechanism_is_none() -> None:
    ann = user("ann", password="x", mechanisms=(1,))
    (known,) = ann.scram
    strange = UserState(
        name="ann",
        scram=(type(known)(mechanism=9, iterations=1, salt=b"", stored_key=b"", server_key=b""),),
        acls=(),
    )
    assert not store(strange).credential("ann", 1).is_of("x")
