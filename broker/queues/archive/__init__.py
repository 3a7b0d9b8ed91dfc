"""The archive of queues: what the retention lets go, in Parquet files."""
