"""`mqmesh queue`."""
