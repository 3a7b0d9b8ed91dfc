"""`mqmesh trace`."""
