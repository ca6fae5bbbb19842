"""What a run's uploads may tell about the clients' data: epsilon, client by client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from secureafl.core.privacy import Privacy


def exposure(
    privacy: Privacy,
    client: Int[np.ndarray, " rounds"],
    batches: Int[np.ndarray, "rounds steps batch"],
    protected: Bool[np.ndarray, " n"],
) -> dict[str, Any]:
    """Epsilon of every client and of the most exposed; None where there is no finite one.

    Args:
        privacy: What the clients do.
        client: Whose each arrival is.
        batches: The rows each arrival was trained on, step by step.
        protected: Who does it at all; malicious clients do not.
    """
    uploads = np.bincount(client, minlength=len(protected))
    squares = np.array(
        [
            _squares(privacy, batches[client == k]) if known else 0
            for k, known in enumerate(protected)
        ]
    )
    most = int(np.lexsort((uploads, squares))[-1])  # of equals, the one that uploads most
    each = [
        _finite(privacy.epsilon(int(total))) if known else None
        for total, known in zip(squares, protected, strict=True)
    ]
    return {
        "protects": "one sample" if privacy.unit == "example" else "all samples of a client",
        "delta": privacy.delta,
        "epsilon": each[most],
        "client": most,
        "uploads": int(uploads[most]),
        "clients": each,
    }


def _squares(privacy: Privacy, batches: Int[np.ndarray, "uploads steps batch"]) -> int:
    """Of the sample in most batches, the sum of m^2, where m is how often it is in each."""
    if privacy.unit == "upload" or not batches.size:
        return len(batches)
    rows = batches.reshape(-1, batches.shape[-1])
    release = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    pairs = np.stack([rows, release]).reshape(2, -1)
    (sample, _), times = np.unique(pairs, axis=1, return_counts=True)
    return int(np.bincount(sample, weights=times**2).max())


def _finite(number: float) -> float | None:
    return round(number, 4) if math.isfinite(number) else None
