"""`mqmesh demo`, act by act."""
