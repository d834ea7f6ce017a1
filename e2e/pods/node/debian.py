"""Debian packages of the node: containerd, runc, the plugins of the pod network, nftables for
kube-proxy and iptables for NetworkPolicies.

Buildah and mmdebstrap build images without a registry. Packages are installed unchanged, and no
service is started: the node runs its own containerd in its own namespaces. Packages remain
installed after a run; nothing else does.
"""

import os
import shutil
from pathlib import Path

from e2e.pods.commands import run
from e2e.pods.progress import Progress

#: A program of each package, by which it is known to be there.
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "nftables": "nft",
    "iptables": "iptables",
    "iproute2": "ip",
    "mount": "mount",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
# invoke-rc.d runs this program before it starts a service; 101 is "not allowed".
POLICY = Path("/usr/sbin/policy-rc.d")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALL_TIMEOUT_S = 600


def missing_packages() -> list[str]:
    """Those whose program is not there."""
    return [name for name, program in PACKAGES.items() if not shutil.which(program, path=PATH)]


def ensure_packages(progress: Progress) -> None:
    """Install what is missing. Raises CommandFailed with what apt said."""
    missing = missing_packages()
    if not missing:
        return
    with progress.step(f"installing Debian's {', '.join(missing)} (no service is started)"):
        # Services must not start on the machine, as the node runs its own containerd.
        made = _forbid_services()
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        try:
            for command in (
                ["update"],
                ["install", "--yes", "--no-install-recommends", *missing],
            ):
                run(
                    ["apt-get", "-qq", *command],
                    environment=environment,
                    timeout_s=INSTALL_TIMEOUT_S,
                )
        finally:
            if made:
                POLICY.unlink(missing_ok=True)


def _forbid_services() -> bool:
    """Whether the policy was made here; one that is there is the administrator's and stays."""
    if POLICY.exists():
        return False
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    return True
