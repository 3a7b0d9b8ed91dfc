"""Management of the whole mesh from one place: lists, actions and events, at any site, asked at any broker (docs/management.md)."""
