"""The shell of `mesh/roaming/`: sessions, connections and the store behind it."""
