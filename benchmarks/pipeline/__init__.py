"""The pipeline beside DuckDB."""
