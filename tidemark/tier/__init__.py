"""The remote tier: objects, manifests and segments, kept in the object store itself.

Pure: ``layout``, ``segment``, ``head``, ``rules``, ``transitions``, ``queries``, ``codec``,
``auxiliary``, ``orphans``.
Shells around the object store: ``objects`` (the port), ``directory``, ``s3``, ``identity``,
``manifest``, ``storage``, ``topics``, ``reader``, ``open``, ``sweeper``. ``config`` says what a
remote store is, with ``filesystem_config`` and ``s3_config``.
"""
