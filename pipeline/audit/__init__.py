"""The audit trail: who did what, in records that are chained by hashes."""
