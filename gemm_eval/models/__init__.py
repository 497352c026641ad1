"""Cost models: one package per kind of architecture."""
