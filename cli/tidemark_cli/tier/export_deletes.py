"""Choose how ``tidemark spark export --delete-after-commit`` deletes records.

A ``RecordDeletion`` is used if a Kubernetes API is available, otherwise the brokers' DeleteRecords.
"""

from collections.abc import Mapping
from pathlib import Path

from tidemark_cli.common import ApiOptions, fail, open_cluster
from tidemark_cli.tier.record_deletions import RecordDeletions
from tidemark_kube.client import KubeRequestError
from tidemark_pipeline.export.record_deletion import BrokerDeletions, Deleter
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.read.topic_source import topic_options


def deleter_of(
    source: Mapping[str, str], table_options: TableOptions, directory: Path | None, api: ApiOptions
) -> Deleter:
    """Return the client that deletes exported records from the topic.

    ``source``: options of the data source. ``directory``: folder of the local cluster, None if the
    export does not read from it. Exits if neither a Kubernetes API nor brokers are given. Raises
    OptionError.
    """
    # Ignoring these options would delete through another API than the user names.
    api.require_kubeconfig()
    # The RecordDeletion objects are annotated with the table that contains the records.
    table = table_options.name_of(table_options.table)
    if api.kubeconfig is not None:
        return RecordDeletions(api.connect(), table)
    if directory is not None:
        try:
            return RecordDeletions(open_cluster(directory).kube(), table)
        except (KubeRequestError, OSError) as error:
            fail(str(error))
    # Without an API, brokers delete the records directly.
    access = topic_options(source).access
    if access is None:
        fail(
            "--delete-after-commit needs an API or brokers: add --kubeconfig FILE or "
            "--bootstrap HOST:PORT"
        )
    return BrokerDeletions(access)
