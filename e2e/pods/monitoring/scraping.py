"""Scrape job that the Prometheus operator generates from a ServiceMonitor.

Prometheus discovers the targets itself, in the API server, by the monitor's selector and the name
of its port. A label or a port that does not match leaves a target missing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Whose pages a target is, by the labels that the Prometheus operator gives every series.
_KEPT = {
    "__meta_kubernetes_namespace": "namespace",
    "__meta_kubernetes_service_name": "service",
    "__meta_kubernetes_pod_name": "pod",
    "__meta_kubernetes_pod_container_name": "container",
}
_PORT = "__meta_kubernetes_endpointslice_port_name"
_PHASE = "__meta_kubernetes_pod_phase"


def jobs(monitors: Sequence[Mapping[str, Any]], interval_s: int) -> list[dict[str, Any]]:
    """One for each endpoint of each ServiceMonitor; ``interval_s`` instead of theirs.

    Raises ValueError for what a monitor may have and is not translated here.
    """
    return [
        _job(monitor, number, endpoint, interval_s)
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["endpoints"])
    ]


def _job(
    monitor: Mapping[str, Any], number: int, endpoint: Mapping[str, Any], interval_s: int
) -> dict[str, Any]:
    metadata, spec = monitor["metadata"], monitor["spec"]
    # A field that is not translated would make the test pass without it.
    _refuse_others("a ServiceMonitor", spec, {"selector", "endpoints"})
    _refuse_others("a selector", spec["selector"], {"matchLabels"})
    _refuse_others("an endpoint", endpoint, {"port", "path", "interval", "relabelings"})
    return {
        "job_name": f"{metadata['namespace']}/{metadata['name']}/{number}",
        "metrics_path": endpoint.get("path", "/metrics"),
        "scrape_interval": f"{interval_s}s",
        "scrape_timeout": f"{interval_s}s",
        "kubernetes_sd_configs": [
            {"role": "endpointslice", "namespaces": {"names": [metadata["namespace"]]}}
        ],
        # Keep what the selector and the port name match, and copy the labels that every series
        # gets.
        "relabel_configs": [
            *_selected(spec["selector"]["matchLabels"]),
            {"source_labels": [_PORT], "regex": endpoint["port"], "action": "keep"},
            {"source_labels": [_PHASE], "regex": "Failed|Succeeded", "action": "drop"},
            *({"source_labels": [meta], "target_label": name} for meta, name in _KEPT.items()),
            *(
                {_snake(key): relabeling[key] for key in relabeling}
                for relabeling in endpoint.get("relabelings", ())
            ),
        ],
    }


def _selected(labels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Only Services that have them."""
    for name, value in labels.items():
        meta = re.sub(r"\W", "_", name)
        yield {
            "source_labels": [f"__meta_kubernetes_service_label_{meta}"],
            "regex": re.escape(value),
            "action": "keep",
        }


def _snake(name: str) -> str:
    """``sourceLabels`` as Prometheus itself has it."""
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _refuse_others(what: str, body: Mapping[str, Any], known: set[str]) -> None:
    if others := sorted(body.keys() - known):
        raise ValueError(f"{what} has {', '.join(others)}, which is not translated")
