"""What a local cluster remembers between two runs: ports, tier, names.

Brokers and clients keep addresses, so a port is chosen once and used again by every later ``up`` in
the same folder.
"""

from dataclasses import asdict, dataclass, replace

from tidemark_cli.local.layout import Layout, LayoutError, read_json, write_json
from tidemark_cli.ports import free_ports

TIERS = ("directory", "s3")
TIDEMARK, KAFKA = "tidemark", "kafka"
ENGINES = (TIDEMARK, KAFKA)


@dataclass(frozen=True, slots=True)
class Settings:
    """One local cluster. ``kubeconfig`` is "" for the own control plane, else the file given;
    ``engine``: what keeps the topics."""

    cluster: str
    namespace: str
    tier: str
    kubeconfig: str
    control_port: int
    metrics_port: int
    engine: str = TIDEMARK

    def save(self, layout: Layout) -> None:
        """Write ``cluster.json``."""
        write_json(layout.settings, asdict(self))


def load(layout: Layout) -> Settings | None:
    """The settings of an earlier ``up`` in this folder, or None. Raises :class:`LayoutError` for
    anything else."""
    value = read_json(layout.settings)
    if value is None:
        return None
    value.setdefault("engine", TIDEMARK)  # as folders were, before there was a choice
    texts = {"cluster", "namespace", "tier", "kubeconfig", "engine"}
    ports = {"control_port", "metrics_port"}
    if (
        set(value) != texts | ports
        or not all(isinstance(value[name], str) for name in texts)
        or not all(type(value[name]) is int and 0 < value[name] < 65536 for name in ports)
        or value["tier"] not in TIERS
        or value["engine"] not in ENGINES
    ):
        raise LayoutError(f"{layout.settings} is none that `tidemark up` has written: remove it")
    return Settings(**value)


def choose(
    layout: Layout,
    *,
    cluster: str,
    tier: str | None,
    engine: str | None = None,
    kubeconfig: str = "",
    namespace: str = "default",
) -> Settings:
    """The settings to run with: those of the folder where it has any, else new ones.

    Raises ValueError when ``tier`` is not the one that the folder's data lies in, or ``engine`` not
    the one that has it.
    """
    if engine == KAFKA and tier == "s3":
        raise ValueError(
            "Apache Kafka is started with its own LocalTieredStorage, a folder: leave --tier out"
        )
    before = load(layout)
    if before is None:
        control, metrics = free_ports(2)
        made = Settings(
            cluster,
            namespace,
            tier or "directory",
            kubeconfig,
            control,
            metrics,
            engine or TIDEMARK,
        )
        made.save(layout)
        return made
    if engine is not None and engine != before.engine:
        raise ValueError(
            f"{layout.root} holds a cluster whose engine is {before.engine!r}; "
            f"use --engine {before.engine}, or another --dir"
        )
    if tier is not None and tier != before.tier:
        raise ValueError(
            f"{layout.root} holds a cluster whose tier is {before.tier!r}; "
            f"use --tier {before.tier}, or another --dir"
        )
    changed = replace(before, kubeconfig=kubeconfig or before.kubeconfig)
    changed.save(layout)
    return changed
