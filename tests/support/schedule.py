"""The order of test files in a parallel run: the longest first, so that no process is left with a long file at the end.

A process runs all tests of a file, and all files of a group, because they share something that takes long to start.
`make test` prints the 25 slowest tests at its end.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
RABBITMQ = (  # one node for all of them
    "interop/test_any_broker.py",
    "metabroker/connectors/test_durable.py",
    "metabroker/connectors/amqp/test_bad_messages.py",
    "metabroker/connectors/amqp/test_connector.py",
)
SPARK_TABLES = (  # one session, one journal and the tables of one run for all of them
    "pipeline/audit/test_job.py",
    "pipeline/billing/test_job.py",
    "pipeline/correlation/test_calls.py",
    "pipeline/correlation/test_messages.py",
    "pipeline/faults/test_faults.py",
    "pipeline/health/test_health.py",
    "pipeline/latency/test_latency.py",
    "pipeline/test_notebook.py",
    "pipeline/test_run.py",
    "pipeline/trace/test_tables.py",
    "pipeline/traffic/test_traffic.py",
    "pipeline/usage/test_usage.py",
)
SPARK = (  # one session for all of them; a process of their own, because all Spark's files in one would end long after the rest
    "pipeline/correlation/test_custom.py",
    "pipeline/correlation/test_invoked.py",
    "pipeline/correlation/test_queued.py",
    "pipeline/source/test_journal_source.py",
    "pipeline/source/test_queues.py",
    "pipeline/source/test_topics.py",
    "pipeline/streaming/test_follow.py",
    "pipeline/tables/test_manifest.py",
    "pipeline/test_demo_act.py",
)
QUEUE_SERVERS = (  # one server of each kind for all of them
    "broker/queues/test_queue_stores.py",
    "broker/queues/test_stores.py",
)
GROUPS = {"spark tables": SPARK_TABLES, "spark": SPARK, "rabbitmq": RABBITMQ, "queue servers": QUEUE_SERVERS}
# Seconds of the files that take longest. They need not be exact: they only give an order.
SECONDS = {
    **dict.fromkeys(SPARK_TABLES, 350),
    **dict.fromkeys(SPARK, 400),
    **dict.fromkeys(QUEUE_SERVERS, 110),
    **dict.fromkeys(RABBITMQ, 59),
    "pipeline/cluster/test_masters.py": 160,
    "faults/test_recipients.py": 45,
    "benchmarks/test_queue_peers.py": 40,
    "simulation/queues/test_queues.py": 45,
    "packaging/test_wheel.py": 40,
    "broker/queues/test_carry.py": 40,
    "faults/test_rolling_upgrade.py": 30,
    "faults/test_copies.py": 30,
    "faults/test_blackhole.py": 15,
    "faults/test_hijack.py": 15,
    "faults/test_two_homes.py": 25,
    "mqtt/test_bounds.py": 20,
    "broker/publish/test_parse.py": 20,
    "contract/test_store_flips.py": 20,
    "directory/uddi/test_stock_clients.py": 20,
    "client/test_broker_dies.py": 20,
    "broker/publish/test_find_puts.py": 18,
    "broker/queues/moving/test_every_moment.py": 18,
    "faults/kills/test_kill_metabrokers.py": 17,
    "broker/queues/archive/test_archive.py": 15,
    "faults/kills/test_kill_journal.py": 15,
    "interop/test_paced_link.py": 15,
    "broker/recipients/test_order.py": 14,
    "cli/demo/test_dead_recipient.py": 13,
    "broker/client/test_backpressure.py": 12,
    "directory/test_changes.py": 12,
    "faults/test_workers.py": 12,
    "cli/demo/test_queue_act.py": 11,
    "broker/management/test_hostile.py": 11,
    "interop/test_recipients.py": 40,
    "simulation/recipients/test_recipients.py": 30,
    "faults/test_slow_link.py": 40,
    "faults/kills/test_kill_custody.py": 40,
    "cli/demo/test_command.py": 60,
    "faults/test_ring.py": 40,
    "cli/demo/test_interchange_act.py": 12,
    "benchmarks/test_compare.py": 25,
    "interop/test_roaming.py": 42,
    "cli/management/test_management_commands.py": 20,
    "faults/test_roaming.py": 60,
    "faults/test_disk_faults.py": 39,
    "simulation/test_simulation.py": 65,
    "client/test_through_a_metabroker.py": 25,
    "contract/test_store_contract.py": 45,
    "metabroker/shell/test_server.py": 23,
    "cli/test_broker_command.py": 22,
    "client/test_connection_breaks.py": 21,
    "faults/test_tls_mesh.py": 20,
    "simulation/test_restarts.py": 17,
    "faults/test_retained_ring.py": 17,
    "faults/test_redundant_links.py": 19,
    "interop/test_tls_clients.py": 19,
    "faults/kills/test_kill_with_stored_will.py": 18,
    "cli/status/test_command.py": 18,
    "documents/test_commands.py": 120,
    "walks/test_fault_at_night.py": 30,
    "walks/test_three_sites.py": 12,
    "walks/test_first_program.py": 10,
    "cli/test_pub_sub.py": 17,
    "faults/kills/test_kill_border_broker.py": 17,
    "directory/test_rest.py": 16,
    "metabroker/shell/test_session_store.py": 16,
    "benchmarks/test_report.py": 15,
    "faults/test_restart.py": 25,
    "faults/kills/test_kill_at_acknowledgement.py": 15,
    "faults/kills/test_kill_broker.py": 15,
    "cli/test_directory_command.py": 15,
    "cli/test_operator_mistakes.py": 15,
    "cli/test_passwd.py": 13,
    "benchmarks/test_stored.py": 12,
    "directory/test_brokers.py": 17,
    "benchmarks/test_gateway.py": 14,
    "contract/test_store_kill.py": 14,
    "cli/test_mesh_command.py": 14,
    "mesh/retained/test_sync.py": 13,
    "metabroker/connectors/nats/test_connector.py": 11,
    "metabroker/shell/test_mesh_of_sites.py": 11,
    "cli/test_cert.py": 11,
    "cli/test_main.py": 18,
    "mqtt/test_topics.py": 11,
    "metabroker/mqtt/test_read_pacing.py": 10,
    "metabroker/shell/test_service_that_moves.py": 9,
    "directory/test_lookups.py": 9,
    "mqtt/test_codec.py": 9,
    "directory/test_processes.py": 9,
    "cli/fleet/test_command.py": 18,
    "broker/queues/moving/test_moving.py": 12,
    "benchmarks/test_generator.py": 12,
    "benchmarks/test_subscriber.py": 10,
    "benchmarks/test_tls.py": 9,
    "benchmarks/test_websocket.py": 9,
    "cli/billing/test_billing_command.py": 9,
    "cli/migrate/test_side_by_side.py": 9,
    "metabroker/shell/test_client_violations.py": 9,
    "directory/uddi/test_operations.py": 9,
    "mqtt/test_codec_oracle.py": 9,
}
OTHERS = 1  # seconds of a file that is not listed


def seconds(file: str) -> float:
    """How long a file takes, roughly; a path from the folder of the tests."""
    return SECONDS.get(file, OTHERS)


def group(file: str) -> str:
    """The files with the same answer run in one process."""
    return next((name for name, files in GROUPS.items() if file in files), file)
