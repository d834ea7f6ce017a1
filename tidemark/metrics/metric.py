"""One row of the table of metrics."""

import enum
from dataclasses import dataclass


class MetricType(enum.StrEnum):
    """Prometheus' types, as they stand behind ``# TYPE``."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """``values``: all that it ever has. Where they are no fixed list ``bound`` says what bounds
    them, as a part of a sentence."""

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` is what Prometheus shows, ``_total`` of counters included; units as Prometheus has
    them (seconds, bytes). ``meaning`` is a sentence."""

    name: str
    kind: MetricType
    meaning: str
    labels: tuple[Label, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """In the order of the values that are given."""
        return tuple(label.name for label in self.labels)


def counter(name: str, meaning: str, *labels: Label) -> Metric:
    """A row; the name without ``_total``."""
    return Metric(f"{name}_total", MetricType.COUNTER, meaning, labels)


def gauge(name: str, meaning: str, *labels: Label) -> Metric:
    """Return a row for a gauge."""
    return Metric(name, MetricType.GAUGE, meaning, labels)


def histogram(name: str, meaning: str, *labels: Label) -> Metric:
    """A row; ``_bucket``, ``_sum`` and ``_count`` come with it."""
    return Metric(name, MetricType.HISTOGRAM, meaning, labels)


def rows(module: dict[str, object]) -> tuple[Metric, ...]:
    """The rows that a module's globals are, in their order."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
