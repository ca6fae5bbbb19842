"""Zeno++: the upload at the length of the server's gradient, and its score."""

import numpy as np
from reference.arrivals import applied, at_most, refused


class ZenoPpServer:
    """`own_gradient(weights)` is that of the trusted samples."""

    def __init__(self, own_gradient, form, penalty, slack):
        self.own_gradient, self.form = own_gradient, form
        self.penalty, self.slack = penalty, slack

    def receive(self, seen):
        own, gradient = self.own_gradient(seen.weights), seen.gradient
        length = np.linalg.norm(gradient)
        rescaled = gradient * (np.linalg.norm(own) / length) if length else np.zeros_like(own)
        product = np.linalg.norm(own) * length
        cosine = gradient @ own / product if product else 0.0
        score = own @ rescaled - self.penalty * (rescaled @ rescaled)
        scores = {"cosine": cosine, "score": score}
        passes = cosine > 0 if self.form == "cosine" else at_most(-self.slack, score, seen)
        return applied(rescaled, scores) if passes else refused(seen, scores)
