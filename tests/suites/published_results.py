"""Results of the same suites that other brokers have published, each with its source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One, in their words where these say more than a number."""

    broker: str
    suite: str
    figure: str
    source: str


PUBLISHED = (
    Figure(
        "Nisshi (formerly Tansu), in-memory engine",
        "franz-go pkg/kgo v1.21.3",
        "61 of 64, those that skip counted",
        "`compat/franz-go` of github.com/nisshi-io/nisshi",
    ),
    Figure(
        "Nisshi (formerly Tansu), in-memory engine",
        "librdkafka 2.14.2",
        "74 tests on its list of those that pass",
        "`compat/librdkafka` of github.com/nisshi-io/nisshi",
    ),
    Figure(
        "Redpanda",
        "librdkafka's own tests",
        "21 of the first 120 left out",
        "rptest in github.com/redpanda-data/redpanda",
    ),
)
