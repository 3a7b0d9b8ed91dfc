"""`mqmesh directory`: run a directory, and use one."""
