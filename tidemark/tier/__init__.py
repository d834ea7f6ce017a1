"""The remote tier: objects, manifests and segments, kept in the object store itself.

Four packages, and the modules that combine the first three:

* ``stores``: object stores (a directory, S3, Google Cloud Storage, Azure Blob Storage), and the
  configuration of a remote store,
* ``metadata``: keys of objects, topic objects, and a partition's manifest with its rules,
* ``segments``: objects of one segment, with digests and auxiliary data,
* ``maintenance``: sweeps, audits, repair of heads, and restore of topics.

``open`` opens a tier, ``reader`` finds segments, ``identity`` and ``conditional_writes`` check a
store before its use.
"""
