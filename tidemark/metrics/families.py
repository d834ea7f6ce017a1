"""Metrics of the client library for rows of the table.

``*_created`` series are disabled: they would double the number of series, for a time that
``process_start_time_seconds`` has as well.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from tidemark.metrics.metric import Metric, MetricType

disable_created_metrics()  # type: ignore[no-untyped-call]

#: By the values of the labels, in the row's order; of a row without labels by ().
Values = Mapping[tuple[str, ...], float]


def counter(row: Metric, registry: CollectorRegistry) -> Counter:
    """Return a counter.

    Series with known label values start at 0: ``rate()`` ignores the first sample of a series, and
    would miss the first event.
    """
    made = Counter(row.name, row.meaning, row.label_names, registry=registry)
    if row.labels:
        for values in itertools.product(*(label.values for label in row.labels)):
            made.labels(*values)
    return made


def gauge(row: Metric, registry: CollectorRegistry) -> Gauge:
    """Return a gauge that its owner sets."""
    return Gauge(row.name, row.meaning, row.label_names, registry=registry)


def histogram(row: Metric, registry: CollectorRegistry, buckets_s: Sequence[float]) -> Histogram:
    """Return a histogram of durations in seconds."""
    names = row.label_names
    return Histogram(row.name, row.meaning, names, registry=registry, buckets=buckets_s)


def family(row: Metric, values: Values) -> Family:
    """Return a collector's samples of a row; without values its name and type."""
    kind = CounterMetricFamily if row.kind is MetricType.COUNTER else GaugeMetricFamily
    made = kind(row.name, row.meaning, labels=row.label_names)
    for labels, value in values.items():
        made.add_metric(labels, value)
    return made


def durations(
    row: Metric,
    buckets_s: Sequence[float],
    values: Mapping[tuple[str, ...], tuple[Sequence[int], float]],
) -> Family:
    """Return a collector's histogram of durations in seconds, with buckets up to ``buckets_s``.

    ``values``: by label values, the number of durations in each bucket and in one above all, and
    their sum.
    """
    made = HistogramMetricFamily(row.name, row.meaning, labels=row.label_names)
    bounds = [str(float(bound)) for bound in buckets_s] + ["+Inf"]
    for labels, (counts, sum_s) in values.items():
        buckets = list(zip(bounds, itertools.accumulate(counts), strict=True))
        made.add_metric(labels, buckets, sum_s)
    return made


def single(row: Metric, value: float) -> Family:
    """Return the sample of a row without labels."""
    return family(row, {(): value})


def singles(values: Mapping[Metric, float]) -> Iterator[Family]:
    """Yield the samples of rows without labels."""
    return (single(row, value) for row, value in values.items())


class ReadOnlyCollector(Collector):
    """Collector of the metrics that ``read`` returns, which the page's thread calls."""

    def __init__(self, read: Callable[[], Iterable[Family]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        """Return the current metrics."""
        return self._read()
