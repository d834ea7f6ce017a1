"""A page of ``/metrics``, held against the table."""

from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from tidemark.metrics.metric import Metric, MetricType

#: What a bucket is labelled with beside its row's labels.
_BUCKET = "le"


def differences(
    page: str, rows: Iterable[Metric], bounded: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the differences between a page and the table: extra or missing names and types,
    labels, and values of labels.

    ``bounded``: all values of the labels that are no fixed list.
    """
    # The parser removes the suffix of counters, so the table's names are compared without it.
    families = {item.name: item for item in text_string_to_metric_families(page)}
    wanted = {row.name.removesuffix("_total"): row for row in rows}
    found = [f"{name} is not in the table" for name in families.keys() - wanted.keys()]
    found += [f"{name} is not shown" for name in wanted.keys() - families.keys()]
    for name in families.keys() & wanted.keys():
        row, family = wanted[name], families[name]
        if family.type != row.kind or (row.kind is MetricType.COUNTER) != row.name.endswith(
            "_total"
        ):
            found.append(f"{name} is a {family.type}, in the table a {row.kind}")
        # Labels with a fixed list of values have it in the table. The caller knows the others.
        values = {label.name: set(label.values or bounded[label.name]) for label in row.labels}
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != _BUCKET}
            if labels.keys() != values.keys():
                found.append(f"{sample.name} has the labels {sorted(labels)}")
            found += [
                f"{sample.name}: {key} is {value!r}"
                for key, value in labels.items()
                if value not in values.get(key, ())
            ]
    return sorted(set(found))
