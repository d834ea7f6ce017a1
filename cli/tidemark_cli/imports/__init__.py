"""``tidemark import``: Topic manifests for existing topics or foreign descriptions of topics.

:mod:`strimzi` reads Strimzi's ``KafkaTopic`` objects, :mod:`kafka_topics` the topics of a cluster.
Both produce :class:`~tidemark_cli.imports.topics.ImportedTopic`, from which :mod:`topics` makes a
``Topic`` manifest. :mod:`documents` reads files, :mod:`command` writes YAML.
"""
