"""Output tables: Parquet files with a manifest that needs no library to read."""
