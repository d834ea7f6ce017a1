"""The configuration of the node's programs, as text; pure.

Two things are unusual. Nothing may be written outside the run's folder, so every path is named. And
the node must not ask for more than a container's administrator may: processes are not protected
from the kernel's memory killer, kernel settings stay as they are, and containers lie directly where
containerd makes their cgroups, without those of pods and of the quality-of-service classes.
"""

import json

from e2e.pods.node.addresses import DOMAIN, NODE, NODE_NAME, PODS, POLICY_QUEUE
from e2e.pods.node.layout import CONTAINERD_SOCKET, Layout

PAUSE_IMAGE = "e2e.tidemark.dev/pause:1"
CNI_PLUGINS = "/usr/lib/cni"


def containerd(layout: Layout) -> str:
    """Version 2 of its configuration, which Debian 12's and 13's read."""
    return f"""
version = 2
root = "{layout.data("containerd")}"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.data("opt")}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{layout.config("cni")}"
"""


def pod_network(layout: Layout) -> str:
    """Each pod on a link of its own to the node, which routes: no bridge, whose packets Services
    would only see with a setting of the whole kernel."""
    plugin = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.data("addresses")),
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "e2e", "plugins": [plugin]})


def kubelet(layout: Layout) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [NODE],
            "clusterDomain": DOMAIN,
            "resolvConf": str(layout.config("resolv.conf")),
            "podLogsDir": str(layout.data("pod-logs")),
            "volumePluginDir": str(layout.data("volume-plugins")),
            # No cgroups of pods and service classes: a container's administrator may not configure
            # them.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # A disk that is rather full is no reason to evict the pods of a test.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            "shutdownGracePeriod": "0s",
        }
    )


def proxy(layout: Layout) -> str:
    """A KubeProxyConfiguration: nftables, and no setting of the whole kernel."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NODE_NAME,
            "bindAddress": NODE,
            "clusterCIDR": PODS,
            "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def corefile(layout: Layout) -> str:
    """Names of Services and pods; nothing leads further."""
    return f"""
.:53 {{
    bind {NODE}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig {layout.kubeconfig("coredns")}
        pods insecure
        ttl 1
    }}
    cache 1
}}
"""


def files(layout: Layout) -> dict[str, str]:
    """Every file under ``config`` by its name."""
    return {
        "containerd.toml": containerd(layout),
        "cni/10-e2e.conflist": pod_network(layout),
        "kubelet.yaml": kubelet(layout),
        "proxy.yaml": proxy(layout),
        "Corefile": corefile(layout),
        "resolv.conf": "# nothing leads out of the node\n",
    }


def api_server(layout: Layout) -> dict[str, list[str]]:
    """The arguments of the store and of the server, which the others wait for: it makes the roles
    first under which they may do anything."""
    pki = layout.pki
    return {
        "etcd": [
            f"--data-dir={layout.data('etcd')}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # Nothing of the node outlives the run, so etcd need not sync.
            "--unsafe-no-fsync=true",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={NODE}",
            f"--advertise-address={NODE}",
            "--service-cluster-ip-range=10.96.0.0/24",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
            # DNS does not contain the node's name.
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={pki / 'tokens.csv'}",
            # The node authorizer is part of the test: kubelets read only their own pods' Secrets.
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-accounts.key'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        ],
    }


def others(layout: Layout) -> dict[str, list[str]]:
    """The arguments of the rest of the control plane, and of what makes the node one."""
    pki = layout.pki
    return {
        "kube-controller-manager": [
            f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
        ],
        "kube-scheduler": [
            f"--kubeconfig={layout.kubeconfig('kube-scheduler')}",
            "--leader-elect=false",
        ],
        "coredns": ["-conf", str(layout.config("Corefile"))],
        "kube-proxy": [f"--config={layout.config('proxy.yaml')}"],
        "kubelet": [
            f"--config={layout.config('kubelet.yaml')}",
            f"--kubeconfig={layout.kubeconfig('kubelet')}",
            f"--root-dir={layout.data('kubelet')}",
            f"--node-ip={NODE}",
            f"--hostname-override={NODE_NAME}",
        ],
    }


def policies(layout: Layout) -> list[str]:
    """The arguments of what enforces NetworkPolicies."""
    return [
        f"-kubeconfig={layout.kubeconfig('policies')}",
        f"-node={NODE_NAME}",
        f"-queue={POLICY_QUEUE}",
    ]
