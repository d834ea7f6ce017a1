"""Where the node of one run keeps everything: one folder, which goes with the run."""

from dataclasses import dataclass
from pathlib import Path

#: Sockets lie in a /run that only the node's mount namespace has.
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")


@dataclass(frozen=True, slots=True)
class Layout:
    """``root``: the folder."""

    root: Path

    @property
    def logs(self) -> Path:
        """Of the node's programs, one file each."""
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def admin(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubeconfig("admin")

    def kubeconfig(self, who: str) -> Path:
        """Of one of :data:`e2e.pods.node.credentials.USERS`."""
        return self.pki / f"{who}.kubeconfig"

    def config(self, name: str) -> Path:
        """A configuration file."""
        return self.root / "config" / name

    def data(self, name: str) -> Path:
        """A folder of one program."""
        return self.root / "data" / name

    @property
    def containerd_config(self) -> Path:
        """Also named where ``ctr`` is called."""
        return self.config("containerd.toml")
