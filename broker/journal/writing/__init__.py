"""The thread that writes the journal: rows, segments, recovery, housekeeping."""
