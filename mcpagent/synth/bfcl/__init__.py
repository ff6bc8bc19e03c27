"""BFCL's multi-turn tasks as dataset records, which are graded as BFCL grades them."""
