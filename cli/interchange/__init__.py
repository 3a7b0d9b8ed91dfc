"""`mqmesh interchange`."""
