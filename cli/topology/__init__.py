"""`mqmesh topology`."""
