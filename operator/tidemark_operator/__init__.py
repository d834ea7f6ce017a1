"""The operator: the controller of a Tidemark cluster, driven by Kubernetes resources."""
