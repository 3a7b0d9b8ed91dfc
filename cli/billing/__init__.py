"""`mqmesh billing` and `mqmesh audit`."""
