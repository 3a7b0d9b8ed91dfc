"""`mqmesh mesh`: change a mesh while it runs."""
