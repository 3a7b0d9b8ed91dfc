"""`mqmesh journal`."""
