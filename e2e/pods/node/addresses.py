"""The addresses of the node's network namespace, which are not visible outside it."""

NODE = "10.89.0.1"
PODS = "10.90.0.0/24"
SERVICES = "10.96.0.0/24"
#: Of Service ``kubernetes``: the first one of the range.
API_SERVICE = "10.96.0.1"
API_PORT = 6443
NODE_NAME = "tidemark-e2e"
DOMAIN = "cluster.local"
#: Where the kernel hands over the first packet of each connection between pods.
POLICY_QUEUE = 100
