"""Argo CD itself, on a cluster of ours: ``make e2e-argocd``, no part of ``make test``."""
