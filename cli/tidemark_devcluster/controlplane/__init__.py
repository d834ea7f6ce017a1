"""Local control plane: a real etcd and kube-apiserver in one process, kubectl, and MinIO."""
