"""FoundationFL over a rule given as a function of rows."""

import numpy as np


def foundation_fl(rows, rule):
    """Half as many copies of the most central row join in."""
    highest, lowest = rows.max(axis=0), rows.min(axis=0)
    scores = [min(np.linalg.norm(row - highest), np.linalg.norm(row - lowest)) for row in rows]
    central = rows[int(np.argmax(scores))]
    return rule(np.concatenate([rows, [central] * (len(rows) // 2)]) if len(rows) > 1 else rows)
