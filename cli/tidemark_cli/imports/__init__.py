"""``tidemark import``: manifests of topics that somebody else has described, or that exist.

:mod:`strimzi` reads Strimzi's ``KafkaTopic`` objects, :mod:`kafka_topics` what a cluster says of
its topics; both end as a :class:`~tidemark_cli.imports.topics.Wanted`, which :mod:`topics` makes
into one of our ``Topic`` manifests. :mod:`documents` reads files, :mod:`manifest_writer` writes
YAML.
"""
