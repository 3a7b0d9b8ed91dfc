"""`mqmesh status`."""
