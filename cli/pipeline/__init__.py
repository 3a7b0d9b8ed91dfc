"""`mqmesh pipeline`: make tables from journals with Spark, and make journals of any size."""
