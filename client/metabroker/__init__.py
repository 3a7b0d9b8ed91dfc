"""The transport through a metabroker."""
