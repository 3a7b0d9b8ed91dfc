"""Commands that look at sites of a mesh, and change them, from any one of them (docs/management.md)."""
