"""Tasks from templates: sampled state first, question second."""
