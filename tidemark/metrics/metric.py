"""Row of the table of metrics."""

import enum
from dataclasses import dataclass


class MetricType(enum.StrEnum):
    """Prometheus' metric types, with their names in ``# TYPE`` lines."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """Label of a metric.

    ``values``: all possible values, if they are a fixed list. Otherwise ``bound`` says what limits
    their number, as a part of a sentence.
    """

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric.

    ``name``: as in Prometheus, with ``_total`` for counters and base units (seconds, bytes).
    ``meaning``: one sentence.
    """

    name: str
    kind: MetricType
    meaning: str
    labels: tuple[Label, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in their order."""
        return tuple(label.name for label in self.labels)


def counter(name: str, meaning: str, *labels: Label) -> Metric:
    """Return a row for a counter, whose ``name`` is without ``_total``."""
    return Metric(f"{name}_total", MetricType.COUNTER, meaning, labels)


def gauge(name: str, meaning: str, *labels: Label) -> Metric:
    """Return a row for a gauge."""
    return Metric(name, MetricType.GAUGE, meaning, labels)


def histogram(name: str, meaning: str, *labels: Label) -> Metric:
    """Return a row for a histogram; Prometheus adds ``_bucket``, ``_sum`` and ``_count``."""
    return Metric(name, MetricType.HISTOGRAM, meaning, labels)


def rows(module: dict[str, object]) -> tuple[Metric, ...]:
    """Return the rows among a module's globals, in their order."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
