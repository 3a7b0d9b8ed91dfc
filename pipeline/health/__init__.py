"""Health: what goes into each job comes out of it; lineage says what was made from what."""
