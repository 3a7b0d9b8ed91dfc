"""`mqmesh store`."""
