"""The pipeline: Spark jobs that make tables from journals. It needs the extra `mqmesh[spark]`."""
