"""Bodies and codes of the metabroker protocol."""
