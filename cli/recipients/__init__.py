"""`mqmesh recipients`."""
