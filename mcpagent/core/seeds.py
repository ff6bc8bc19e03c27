"""Seeds that do not depend on order, process or PYTHONHASHSEED."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from any printable parts: `derive_seed(run_seed, "rollout", task_id, attempt)`."""
    text = "\x1f".join(str(p) for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
