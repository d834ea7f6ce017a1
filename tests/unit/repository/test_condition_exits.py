"""Every reason of a condition has an exit: a test that does what its message says, or an
explanation why there is nothing to do.

A new reason (``tidemark/reason_table.py``) fails this until a table has it, and so does a row
of a removed reason. The tables are by kind (``Topic``, ``Broker`` and so on), as one name can mean
two things.
"""

import ast
from pathlib import Path

import pytest

from tidemark.reason_table import TABLE

TESTS = Path(__file__).parents[2]

_EXITS = "unit/operator_shell/test_exits.py::"
_BROKERS = "unit/operator_shell/test_broker_reconciler.py::"
_USERS = "unit/operator_shell/test_user_reconciler.py::"
_EXPORTS = "unit/operator_shell/test_export_reconciler.py::"
_EXPORTING = "unit/controller/test_export_status.py::"
_ADOPTION = "unit/controller/test_adoption.py::"
_LOSSES = "unit/controller/test_accepted_losses.py::"
_STATUS = "unit/controller/test_topics_and_status.py::"
_RECORDS = "unit/controller/test_record_deletion.py::"
_DRAINING = "unit/controller/test_draining.py::"
_RESTARTS = "unit/controller/test_restarts.py::"
_PODS = "integration/operator/test_pods.py::"
_OUTSIDE = "integration/operator/test_external_listeners.py::"
_DELETIONS = "unit/operator_shell/test_record_deletion_reconciler.py::"
_FAULTS = "integration/remote_log/test_store_faults.py::"
_TIER_EXITS = "integration/remote_log/test_tier_exits.py::"
_CLOUDS = "integration/remote_log/test_clouds.py::"
_MAX_LAG = "integration/remote_log/test_max_lag.py::"
_FILE_SYSTEM = _TIER_EXITS + "test_file_system_that_refuses_and_is_repaired"
_OTHER_SERVER = _TIER_EXITS + "test_unsuitable_server_is_reported_and_can_be_replaced"
_TAKE_OVER = _EXITS + "test_a_blocked_takeover_is_reported_until_it_is_repaired"
_FAILURES = (
    "unit/operator_shell/test_workers.py::test_a_repeated_failure_is_reported_once_and_withdrawn"
)
_UNREACHED = (
    "unit/operator_shell/test_pacemaker.py::"
    "test_a_controller_reports_whether_a_broker_has_reached_it"
)
_TIER = "Topic, as the leaders report of the tier"
_KAFKA_TOPICS = "integration/kafka_engine/test_topics.py::"
_KAFKA_UNASKED = _KAFKA_TOPICS + "test_externally_deleted_topic_is_not_recreated"
_KAFKA_OUT = _KAFKA_TOPICS + "test_unusable_connection_is_reported_and_recovers"

#: Reason -> the test that takes the exit.
TAKEN = {
    "Topic": {
        "Paused": _EXITS + "test_a_pause_ends_with_its_annotation",
        "DeletionPending": "unit/operator_shell/test_deletion_grace.py::"
        "test_topic_is_kept_and_adopted_as_the_event_says",
        "LeadersStarting": "unit/controller/test_acknowledgements.py::"
        "test_a_slow_broker_is_named_once_the_time_is_over",
        "BrokersMissing": _EXITS + "test_exit_of_brokers_missing_is_to_start_brokers",
        "PartitionsOffline": _EXITS + "test_exit_of_partitions_offline_is_to_start_a_replica",
        "ElectionPending": _LOSSES + "test_copy_is_accepted_while_an_election_waits_for_another",
        "LastCopyMissing": _LOSSES + "test_offered_copy_is_the_longest_and_accepting_it_elects_it",
        "StorageFailed": "unit/controller/test_storage_refuses.py::"
        "test_repaired_replica_rejoins_and_leads_again",
        "Deleting": "unit/controller/test_topic_deletion.py::"
        "test_orphan_also_releases_a_deletion_that_hangs",
        "NameTaken": _EXITS + "test_exit_of_name_taken_is_to_delete_one_topic",
        "PartitionsBeyondSpec": "unit/controller/test_rebuilding.py::"
        "test_partitions_that_were_added_after_the_backup_are_served",
        "AdoptionRequired": _ADOPTION + "test_topic_adopts_the_id_in_its_annotation",
        "AdoptionRefused": _ADOPTION + "test_an_unknown_id_is_not_recreated",
        "Rebuilding": _EXITS
        + "test_partitions_that_are_lost_are_rebuilt_once_brokers_have_reported",
        "SliceFull": _EXITS + "test_a_full_slice_has_room_once_topics_are_deleted",
        "StorageUnavailable": _EXITS + "test_exit_of_storage_unavailable_is_to_configure_a_store",
        "LocalRetentionTooLong": _EXITS + "test_exit_of_local_retention_too_long_is_to_shorten_it",
        "CopyLagTooLong": _EXITS + "test_exit_of_copy_lag_too_long_is_to_copy_at_once",
        "Compacted": _EXITS + "test_a_topic_that_a_default_would_compact_has_an_explicit_policy",
        "NoProgress": "unit/controller/test_disablement.py::"
        "test_stalled_disablement_names_the_slow_broker",
        "ReplicationFactorPending": "unit/controller/test_replication_factor_changes.py::"
        "test_a_replication_factor_without_enough_brokers_is_reported_and_the_topic_continues",
        "Placeholders": "unit/controller/test_placement.py::"
        "test_joining_broker_fills_the_emptiest_partitions_first",
        "UnderMinIsr": _STATUS + "test_placeholders_are_trouble_if_they_stop_producers",
        "MinInsyncReplicasTooHigh": _STATUS
        + "test_min_insync_replicas_above_the_replication_factor_is_reported",
        "ReplicasBehind": _STATUS + "test_third_broker_completes_the_replicas",
        "Disabling": _STATUS + "test_disablement_from_start_to_end",
        "MaxLagExceeded": _MAX_LAG + "test_slow_store_does_not_cause_more_segments",
        "CopyingPaused": _MAX_LAG + "test_pause_stops_copying_until_it_is_removed",
        "ObjectDamaged": "integration/remote_log/test_damaged_objects.py::"
        "test_deleting_damaged_records_clears_the_status",
        **dict.fromkeys(
            ("DamageFound", "ManifestContradicts", "NotAudited", "AuditOutdated"),
            "unit/operator_shell/test_audits.py::"
            "test_a_topic_shows_the_last_audits_findings_until_the_next_one",
        ),
    },
    _TIER: {
        "TierUnavailable": "integration/remote_log/test_prefix.py::"
        "test_takeover_reports_a_missing_tier_and_completes_later",
        "TierIntegrity": "integration/remote_log/test_damaged_objects.py::"
        "test_deleting_damaged_records_clears_the_status",
        "StoreAccessDenied": _FAULTS + "test_wrong_secret_key_is_reported_and_recovers",
        "StoreCredentialsMissing": _FAULTS
        + "test_broker_without_an_identity_reports_the_sources_and_recovers",
        "StoreUnreachable": _FAULTS + "test_unreachable_endpoint_is_reported_and_recovers",
        "StoreThrottled": _CLOUDS + "test_throttled_store_is_reported_and_recovers",
        "StoreClockSkewed": _CLOUDS + "test_wrong_clock_is_reported_and_recovers",
        "StoreDirectoryMissing": _FAULTS + "test_folder_that_disappears_and_returns",
        "WrongStore": _FAULTS + "test_another_empty_folder_is_not_an_empty_tier",
        "CustomMetadataTooLarge": "integration/remote_log/test_custom_metadata.py::"
        "test_above_the_limit_copying_stops_and_nothing_is_recorded",
        "LocalDataMissing": _TIER_EXITS
        + "test_records_missing_on_the_leader_are_copied_by_the_next_leader",
        "ManifestNotFound": "integration/remote_log/test_prefix.py::"
        "test_missing_manifest_is_unavailable_and_not_empty",
        "ManifestPageNotFound": _TIER_EXITS
        + "test_missing_page_is_reported_and_recovers_once_restored",
        "ManifestCorrupt": _TIER_EXITS + "test_damaged_head_is_reported_and_recovers_once_restored",
        "ManifestRefused": _TIER_EXITS + "test_full_manifest_recovers_with_a_shorter_retention",
        "RemoteObjectMissing": _TIER_EXITS
        + "test_missing_segment_is_reported_and_recovers_once_restored",
        "ObjectVersionUnsupported": "integration/remote_log/test_damaged_objects.py::"
        "test_object_of_a_newer_version_is_reported_until_the_upgrade",
        "RemoteStorageNotConfigured": _TIER_EXITS
        + "test_missing_remote_storage_is_reported_and_recovers",
        "InvalidRemoteStorage": _TIER_EXITS + "test_invalid_remote_storage_recovers_once_corrected",
        "BucketMissing": _TIER_EXITS + "test_missing_bucket_is_reported_and_recovers_once_created",
        "BucketNotConfigured": _TIER_EXITS
        + "test_bucket_removed_from_the_configuration_has_to_be_added_again",
        "EncryptionKeyMissing": "integration/remote_log/test_encrypted_segments.py::"
        "test_missing_key_is_reported_and_recovers_once_it_is_back",
        "EncryptionKeyUnavailable": "integration/remote_log/test_encrypted_segments.py::"
        "test_key_that_kms_refuses_is_reported_and_recovers",
        "ForeignCustomMetadata": _TIER_EXITS + "test_segments_of_another_plugin_need_that_plugin",
        "StoreFull": _FILE_SYSTEM,
        "StorePermissionDenied": _FILE_SYSTEM,
        "StoreInputOutputError": _FILE_SYSTEM,
        "StoreNotAFile": _FAULTS + "test_unusable_data_folder_is_an_error_of_the_partition",
        "RemoteStorageUnavailable": _TIER_EXITS
        + "test_store_that_fails_in_an_unknown_way_is_retried",
        "StoreNotS3": _OTHER_SERVER,
        "StoreWithoutETags": _OTHER_SERVER,
        "StoreError": _OTHER_SERVER,
        "StoreNotImplemented": _OTHER_SERVER,
        "StoreWithoutConditionalWrites": _TIER_EXITS
        + "test_store_that_ignores_conditional_writes_is_not_written",
        "StoreRefusesDeletes": _TIER_EXITS + "test_locked_object_is_reported_until_it_is_released",
        "StoreDirectoryUnstable": _TIER_EXITS
        + "test_folder_cleaned_by_another_program_is_reported_and_recovers",
    },
    "Broker": {
        "NeverRegistered": _EXITS + "test_brokers_are_started_stopped_and_distinguished",
        "Fenced": _EXITS + "test_brokers_are_started_stopped_and_distinguished",
        "ShutDown": _EXITS + "test_brokers_are_started_stopped_and_distinguished",
        "NodeIdTaken": _BROKERS
        + "test_the_second_of_two_objects_with_one_node_id_is_marked_and_takes_over_later",
        "BrokerUnreachable": _UNREACHED,
        "LogDirectoryFailed": "unit/replication/test_full_disk.py::"
        "test_a_full_disk_is_an_error_of_the_directory",
        "ReplicasFailed": "unit/replication/test_repair.py::"
        "test_a_failure_to_create_a_replica_is_forgotten_with_its_topic",
        "ReplicasCannotMove": _DRAINING + "test_following_the_message_completes_the_drain",
        "RestartPending": _RESTARTS + "test_once_the_partitions_are_in_sync_nothing_waits",
        "AddressPending": _OUTSIDE + "test_load_balancer_address_is_awaited_and_advertised",
        "AddressRefused": _OUTSIDE + "test_taken_port_is_reported_until_it_is_free",
        "PodStarting": _PODS + "test_broker_has_a_pod_a_volume_and_services",
        "PodMissing": _PODS + "test_missing_controller_addresses_are_reported",
        "PodRefused": _PODS + "test_existing_object_of_the_name_blocks_until_it_is_deleted",
        "VolumeRefused": _PODS + "test_volume_grows_only_if_its_class_allows_expansion",
        "ReplicasInUse": _BROKERS
        + "test_a_dead_broker_with_the_last_copy_is_deleted_once_given_up_by_name",
    },
    "Cluster": {
        "SlicesOfAnotherCluster": "unit/operator_shell/test_takeover.py::"
        "test_recreated_cluster_adopts_its_slices_by_annotation",
        "BrokersUnreachable": _UNREACHED,
        "AddressPending": _OUTSIDE + "test_load_balancer_address_is_awaited_and_advertised",
        "AddressRefused": _OUTSIDE + "test_taken_port_is_reported_until_it_is_free",
        "Rebuilding": "unit/operator_shell/test_rebuilding.py::"
        "test_rebuilding_ends_once_every_broker_has_reported",
        "OrphansLeft": "unit/operator_shell/test_cluster_reconciler.py::"
        "test_a_condition_reports_leftovers_of_a_sweep_until_they_are_deleted",
        "RemoteStorageUnavailable": _EXITS + "test_exit_of_an_unusable_store_is_in_its_message",
        "BrokersRefused": "unit/operator_shell/test_made_brokers.py::"
        "test_a_refusal_is_reported_and_stops_nothing_else",
        "CreationRefused": "integration/operator/test_object_metadata.py::"
        "test_refused_objects_are_reported_to_clients_and_on_the_cluster",
        "SecondCluster": _EXITS + "test_exit_of_second_cluster_is_to_delete_one",
        "CertificatesUnusable": "unit/operator_shell/test_pacemaker.py::"
        "test_damaged_authority_is_reported_by_the_cluster",
        **dict.fromkeys(("SliceUnreadable", "SliceRefused", "SlicesContended"), _TAKE_OVER),
        "NoBrokers": _EXITS + "test_a_broker_is_started_for_a_cluster_without_any",
    },
    "RecordDeletion": {
        "Resolving": _DELETIONS + "test_an_unreachable_leader_is_waited_for",
        "PartitionsOffline": _DELETIONS + "test_after_a_clean_election_the_deletion_continues",
        **dict.fromkeys(
            ("TopicNotFound", "TopicNotReady"),
            _DELETIONS + "test_a_deletion_continues_once_its_topic_exists_and_is_placed",
        ),
    },
    "User": {
        "AcknowledgementsPending": _USERS + "test_a_user_is_ready_once_every_broker_knows_it",
        "CertificatesUnusable": _USERS + "test_an_authority_that_is_restored_issues_again",
        "SecretTaken": _USERS + "test_a_secret_of_another_owner_is_not_modified",
        "SecretRefused": _USERS + "test_a_missing_permission_for_secrets_is_reported",
        "LimitReached": _USERS + "test_a_user_beyond_the_limit_is_rejected",
        "PasswordUnusable": _USERS + "test_user_without_its_referenced_password_has_no_credential",
    },
    "Export": {
        "MaintenanceFailed": _EXPORTS + "test_failed_maintenance_is_an_event",
        "JobFailed": _EXPORTS + "test_a_failed_job_is_reported_and_restarted",
        "TopicNotFound": _EXPORTS + "test_an_export_waits_for_a_topic_that_is_not_there_yet",
        "TopicReplaced": _EXPORTS + "test_an_export_without_its_topic_ends_its_job_and_reports_it",
        "TableTaken": _EXPORTS + "test_younger_of_two_exports_of_one_table_is_refused",
        "TableTakenOver": _EXPORTS + "test_a_table_taken_over_by_another_job_is_not_fought_for",
        "ScheduleInvalid": _EXPORTS + "test_an_invalid_schedule_is_corrected",
        "SourceUnusable": _EXPORTS + "test_unusable_source_is_reported_until_it_is_usable",
        "PolicyRefused": _EXPORTS + "test_policy_change_stops_a_running_job",
        "SecretNotOffered": _EXPORTS + "test_secret_is_used_only_while_it_is_offered",
        "ImageMissing": _EXPORTS + "test_export_without_any_image_is_stalled",
        "JobRefused": _EXPORTS + "test_a_refused_job_is_reported_and_retried",
        "Lagging": _EXPORTING + "test_lagging_condition_has_hysteresis",
        "NoProgress": _EXPORTING + "test_job_without_commits_despite_lag_is_reported",
        "TopicsFailing": _EXPORTING + "test_failing_topics_are_named_and_the_others_are_exported",
        "ReportMissing": _EXPORTING + "test_unreachable_metrics_page_keeps_the_job_running",
    },
    "Topic, Broker and Cluster": {
        "DeletionProtected": "unit/operator_shell/test_deletion_protection.py::"
        "test_protected_topic_is_served_until_the_annotation_is_removed",
        "DefinitionDeleted": "integration/operator/test_deleted_definitions.py::"
        "test_deleting_the_definitions_deletes_no_data",
    },
    "Topic, Broker and User": {
        **dict.fromkeys(
            ("ClusterNotFound", "ClusterNotControlled"),
            _EXITS + "test_exit_of_a_missing_cluster_is_to_create_it",
        ),
    },
    "Topic, Broker, Cluster, User and Export": {
        "Deleted": "integration/operator/test_cluster_deletion.py::"
        "test_objects_held_by_other_finalizers_report_deleted",
    },
    "Every kind": {
        "ObjectUnreadable": "unit/operator_shell/test_workers.py::"
        "test_an_object_that_this_version_cannot_read_is_marked",
        **dict.fromkeys(
            ("Contended", "AccessDenied", "WriteRefused", "DecisionNotStored", "InternalError"),
            _FAILURES,
        ),
    },
    "Topic, with engine kafka": {
        "KafkaUnavailable": _KAFKA_OUT,
        "ConfigRefused": _KAFKA_TOPICS + "test_configuration_refused_by_kafka_is_reported",
        "NameRefused": _KAFKA_TOPICS + "test_colliding_topic_names_are_refused",
        "TopicMissing": _KAFKA_UNASKED,
        "TopicReplaced": _KAFKA_UNASKED,
        "PartitionsAdded": _KAFKA_TOPICS + "test_partitions_are_added_and_never_removed",
        "ClientChangesNotRefused": "unit/kafka_engine/test_topic_rules.py::"
        "test_client_changes_that_cannot_be_refused_are_reported_until_the_field_is_removed",
        "TieringFieldNotSupported": "unit/kafka_engine/test_topic_rules.py::"
        "test_tiering_fields_without_a_counterpart_are_reported_until_they_are_removed",
        "TieringEnabledExternally": "integration/kafka_engine/test_tiering.py::"
        "test_topic_tiered_externally_is_reported_and_left_alone",
        "ReassignmentInProgress": "integration/kafka_engine/test_moves.py::"
        "test_foreign_reassignment_is_left_alone",
    },
    "Cluster, with engine kafka": {
        "EngineUnavailable": _KAFKA_OUT,
        "EngineRejected": _KAFKA_OUT,
    },
    "Broker and User, with engine kafka": {
        "EngineKafka": "integration/kafka_engine/test_brokers.py::"
        "test_brokers_appear_and_are_recreated",
    },
}

_WELL = "nothing is wrong"
_PASSES = "it ends by itself"
_OVER = "the object is done for good: another one is applied"
_STARTS = "it ends when an operator starts, before which no process could say more"

#: Reason -> why no exit of it is taken.
NOT_TAKEN = {
    "Topic": {
        "Pending": _STARTS,
        **dict.fromkeys(
            (
                "Serving",
                "Settled",
                "Progressing",
                "AllInSync",
                "Enabled",
                "WithinMaxLag",
                "Disabled",
                "AuditPassed",
            ),
            _WELL,
        ),
        **dict.fromkeys(("Placing", "Adopting"), _PASSES),
        **dict.fromkeys(("ReplicationFactorChanging",), _PASSES),
        "Stalled": "it refers to the condition Stalled",
    },
    _TIER: {
        **dict.fromkeys(
            (
                "TakingOverFromTier",
                "LogDiverged",
                "ManifestContended",
                "Fenced",
                "TopicDeleted",
                "RemoteStorageNotVerified",
            ),
            _PASSES,
        ),
        "StorageError": "see the Broker's LogDirectoryFailed",
        "RemoteLogError": "a fault of ours, to be reported",
    },
    "Broker": {
        **dict.fromkeys(("Serving", "Registered", "Drained", "UpToDate", "Advertised"), _WELL),
        "MovingReplicas": _PASSES,
        "RemoteStorageUnavailable": "the broker serves; see the reasons of the tier",
    },
    "Cluster": {
        **dict.fromkeys(("Serving", "Available", "Swept", "Advertised"), _WELL),
        "EpochsExhausted": "nothing can be done within this Cluster; another one is made",
        "EpochsRunningOut": "the way out is another Cluster",
        "Deleting": "it ends when the objects that the message names are deleted",
        "SlicesMissing": _PASSES,
    },
    "RecordDeletion": {
        "Pending": _STARTS,
        **dict.fromkeys(("Deleted", "DryRun", "Finished", "Progressing"), _WELL),
        "Deleting": _PASSES,
        **dict.fromkeys(
            ("Abandoned", "PartitionUnknown", "PartitionsFailed", "TopicReplaced", "Timeout"),
            _OVER,
        ),
    },
    "User": {
        "Pending": _STARTS,
        "Usable": _WELL,
    },
    "Export": {
        "Pending": _STARTS,
        **dict.fromkeys(("Running", "Scheduled", "Suspended", "UpToDate", "Maintained"), _WELL),
        **dict.fromkeys(("CatchingUp", "JobStarting"), _PASSES),
    },
    "Topic, with engine kafka": {
        "Creating": _PASSES,
        "KafkaBusy": _PASSES,
        **dict.fromkeys(("KafkaRejected", "PolicyViolation"), "Kafka's own words say what to do"),
    },
}


@pytest.mark.parametrize("kind", TABLE)
def test_every_reason_has_a_tested_exit_or_an_explanation(kind: str) -> None:
    taken, not_taken = set(TAKEN.get(kind, ())), set(NOT_TAKEN.get(kind, ()))
    reasons = set(TABLE[kind])
    assert not reasons - taken - not_taken, "say which test takes the exit, in this module"
    assert not (taken | not_taken) - reasons, "there are no such reasons any more"
    assert not taken & not_taken


def test_no_row_is_of_a_removed_kind() -> None:
    assert not {*TAKEN, *NOT_TAKEN} - set(TABLE)


@pytest.mark.parametrize(
    "test", sorted({test for tests in TAKEN.values() for test in tests.values()})
)
def test_named_test_of_an_exit_exists(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((TESTS / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
