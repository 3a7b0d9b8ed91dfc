"""The lists of a broker, one file for what belongs together."""
