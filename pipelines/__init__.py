"""splice's stages as Beam pipelines: the same tasks on a laptop or on a cluster."""
