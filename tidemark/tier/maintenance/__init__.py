"""Maintenance of a tier: sweeps of unreferenced objects, audits, repair and restore.

All of it works on an open tier (``tidemark.tier.open``). None of it is needed to read or to copy.
"""
