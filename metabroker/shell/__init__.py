"""The metabroker as a process or inside a broker."""
