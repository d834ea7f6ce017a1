"""What is altered of a topic of Apache Kafka, and what amounts to the same and is left alone."""

from tidemark_operator.engines.kafka.wanted import (
    COPY_DISABLE,
    ENABLE,
    LOCAL_RETENTION,
    Difference,
    Wanted,
    difference,
)

RETAINED = {ENABLE: "true", COPY_DISABLE: "true"}
ASKED = Wanted({**RETAINED, **dict.fromkeys(LOCAL_RETENTION, "-2")})


def test_local_retention_that_comes_from_the_brokers_is_left_alone_once_nothing_is_copied() -> None:
    """A topic in this state, made elsewhere, could not be adopted: its manifest cannot say more."""
    assert difference(RETAINED, ASKED, ()) == Difference({}, ())


def test_local_retention_is_set_while_copies_are_still_made() -> None:
    """Kafka demands it before it takes ``remote.log.copy.disable``."""
    found = difference({ENABLE: "true"}, ASKED, ())
    assert found.set == {COPY_DISABLE: "true", **dict.fromkeys(LOCAL_RETENTION, "-2")}


def test_a_local_retention_of_the_topics_own_is_set_back() -> None:
    own = {**RETAINED, LOCAL_RETENTION[0]: "1000"}
    assert difference(own, ASKED, ()).set == {LOCAL_RETENTION[0]: "-2"}
