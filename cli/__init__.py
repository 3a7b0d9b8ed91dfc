"""The command line `mqmesh`."""
