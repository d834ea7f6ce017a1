"""The Kubernetes resources of ``tidemark.dev/v1alpha1``: models, and the CRDs generated from
them."""
