"""Metadata of a tier: keys of objects, topic objects, and manifests of partitions.

``layout``, ``segment``, ``head``, ``transitions``, ``queries``, ``retention`` and ``codec`` are
pure. ``manifest`` and ``topics`` read and write objects.
"""
