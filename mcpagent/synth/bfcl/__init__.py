"""BFCL's multi-turn tasks as dataset records, and BFCL's own verdict on an episode of one."""
