"""Programs that run inside the broker's process: the metabroker and the directory registration."""
