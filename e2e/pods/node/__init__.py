"""The provider that needs no Docker: a kubelet in namespaces of its own, on Debian."""
