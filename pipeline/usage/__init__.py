"""Usage: who used what, from the counters of the journal that are always on."""
