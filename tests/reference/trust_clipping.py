"""Trust clipping with lists and loops; every history is a whole vector, nothing is sketched."""

import math

import numpy as np
from reference.arrivals import Outcome, at_most
from reference.neighbours import lower_median, neighbour_weights, rise


def curvature_weights(stats, memory, among, credit):
    """Weights from the cosines between the model's moves and the uploads' changes."""
    median = [c["mean"] for c, a in zip(stats, among, strict=True) if a and c["count"] >= 5]
    median = lower_median(median) if median else math.inf
    weights = []
    for client, there in zip(stats, among, strict=True):
        if not there or client["count"] < 5 or not 0 < median < math.inf:
            weights.append(1.0)
            continue
        number = min(client["count"], round((1 + memory) / (1 - memory)))
        error = math.sqrt(client["variance"] / number)
        ratio = (client["mean"] + credit * error) / median
        weights.append(min(max((ratio - 0.25) / 0.5, 0.0), 1.0))
    return weights


def ridge_fit(target, others, ridge):
    """Coefficients of the ridge regression of a vector on others, and what it leaves."""
    if not others:
        return np.zeros(0), target @ target
    matrix = np.array(others).T
    size = matrix.shape[1]
    stacked = np.vstack([matrix, np.sqrt(ridge) * np.eye(size)])
    wanted = np.concatenate([target, np.zeros(size)])
    found = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
    return found, np.square(wanted - stacked @ found).sum()


def without(vectors, place):
    return [vector for k, vector in enumerate(vectors) if k != place]


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length > 1e-15 else 0 * vector


def novelty_weights(histories):
    """4 medians of what the others leave unexplained, over one's own; at most 1."""
    lengths = [np.linalg.norm(history) for history in histories]
    median = lower_median(lengths)
    shown = [h / max(size / 2, median, 1e-30) for h, size in zip(histories, lengths, strict=True)]
    left = [ridge_fit(h, without(shown, k), 0.1)[1] for k, h in enumerate(shown)]
    usual = max(0.1, 4 * lower_median(left))
    return [min(1.0, usual / value) if value > usual else 1.0 for value in left]


def length_weights(histories):
    """The square of one and a half medians of all lengths over one's own; at most 1."""
    lengths = [np.linalg.norm(history) for history in histories]
    usual = max(1.5 * lower_median(lengths), 1e-30)
    if len(lengths) <= 2:
        return [1.0] * len(lengths)
    return [min(1.0, usual / length) ** 2 if length > 0 else 1.0 for length in lengths]


def group_weights(histories):
    """Weights from how much agrees with what others confirm of a client, counted in two ways."""
    units = [unit(history) for history in histories]
    guesses = []
    for k, direction in enumerate(units):
        others = without(units, k)
        found, _ = ridge_fit(direction, others, 1.0)
        guess = sum((c * o for c, o in zip(found, others, strict=True)), 0 * direction)
        guesses.append(guess / max(np.linalg.norm(guess), 1e-9**0.5))
    lengths = [np.linalg.norm(history) for history in histories]
    median = max(lower_median(lengths), 1e-30)
    voices = [np.sqrt(min(2.0, max(0.5, length / median))) for length in lengths]
    weights, minds = [1.0] * len(units), None
    for _ in range(2):
        centre = sum(w * g for w, g in zip(weights, guesses, strict=True)) / (sum(weights) or 1)
        moved = [guess - centre for guess in guesses]
        spread = sum(np.outer(m, m) for m in moved) + 0.3 * np.eye(len(centre))
        whitened = [np.linalg.solve(np.linalg.cholesky(spread), m) for m in moved]
        seen, alike = shortened(moved), [1.0] * len(moved)
        blocks = np.maximum(group_sizes(seen, alike), group_sizes(seen, voices))
        groups = np.maximum(1.0, group_sizes(shortened(whitened), alike))
        minds = minds or [sum(mine @ other > 0.5 for other in seen) for mine in seen]
        weights = []
        for mind, block, group in zip(minds, blocks, groups, strict=True):
            by_block = 1 - 0.4 * rise(block, 1.35, 1.65)
            by_group = 1 - rise(group, 1.5, 1.75)
            weights.append(1.0 if 2 * mind >= len(seen) else min(by_block, by_group))
    return weights


def shortened(vectors):
    """The vectors at length 1; those of next to none stay near 0."""
    return [vector / max(np.linalg.norm(vector), 1e-9**0.5) for vector in vectors]


def group_sizes(seen, voices):
    """The root of how many pairs agree with each and with each other, and itself; in medians."""
    agree = np.maximum(0, np.array(seen) @ np.array(seen).T - 0.1)
    sizes = []
    for mine, voice in zip(agree, voices, strict=True):
        # Of clients j and k, how much the client agrees with both, and they with each other.
        triples = np.sqrt(mine[:, None] * mine * agree)
        sizes.append(voice + np.sqrt((triples * np.outer(voices, voices)).sum()))
    return np.array(sizes) / lower_median(sizes)


class TrustClippingServer:
    """What it knows of a client is in dictionaries."""

    def __init__(self, num_clients, momentum):
        self.num_clients, self.momentum, self.centre = num_clients, momentum, 0.0
        self.norms, self.distances, self.usual, self.recent = {}, {}, {}, {}
        self.counts, self.last, self.bases, self.histories = {}, {}, {}, {}
        self.curvature, self.earned, self.mean_trust = {}, [1.0] * num_clients, 1.0
        self.trust, self.kept, self.arrivals = {}, {}, 0

    def receive(self, seen):
        away = seen.gradient - self.centre
        self.norms[seen.client] = np.linalg.norm(seen.gradient)
        distance = np.linalg.norm(away)
        self._measure(seen.client, distance)
        self._remember(seen, away, distance)
        if self.arrivals % max(1, self.num_clients // 2) == 0:
            for client, weight in self._trust().items():
                before = self.trust.get(client, 1.0)
                forgiven = self.num_clients >= 20 and before < 0.5 and weight > before
                news = 0.02 if forgiven else 0.25
                self.trust[client] = before + news * (weight - before)
        self.arrivals += 1
        trust = self.trust.get(seen.client, 1.0)
        pace = self._spend(seen.client)
        weight = trust * pace
        self.mean_trust += 0.01 * pace * (trust - self.mean_trust)
        distances = list(self.distances.values())
        radius = min(self._median_of_all(self.recent) ** 2, self._median_of_all(self.norms))
        shorter = sum(min(value, radius) for value in distances)
        stretch = sum(min(value, 2 * radius) for value in distances) / shorter if shorter else 1.0
        kept = unit(away) * min(distance, radius)
        warm_up = min(1.0, self._median_of_all(self.counts) * max(1, self.num_clients / 128) / 5)
        direction = warm_up * weight / max(self.mean_trust, 0.5) * stretch * (self.centre + kept)
        moves = weight > 0 and 2 * len(self.norms) > self.num_clients
        moves = moves and np.linalg.norm(direction) <= 1e18
        if moves and radius > 0:
            self._follow(0.5 / self.num_clients * weight * kept)
        scores = {"weight": trust, "pace": pace}
        accepted = not at_most(
            weight, np.nextafter(0.5, 0), seen._replace(verdict=not seen.verdict)
        )
        return Outcome(accepted, moves, direction, scores)

    def _measure(self, client, distance):
        uploads = self.counts.get(client, 0)
        usual = self.usual.get(client, 0.0)
        self.distances[client] = min(distance, 1.5 * usual) if uploads else distance
        self.usual[client] = (uploads * usual + self.distances[client]) / (uploads + 1)
        kept = min(uploads / (uploads + 1), self.momentum)
        root = np.sqrt(self.distances[client])
        self.recent[client] = kept * self.recent.get(client, 0.0) + (1 - kept) * root

    def _median_of_all(self, values):
        silent = [0.0] * (self.num_clients - len(values))
        return sorted([*values.values(), *silent])[(self.num_clients - 1) // 2]

    def _follow(self, move):
        moved = self.centre + move
        longest = 2 * self._median_of_all(self.norms)
        self.centre = unit(moved) * min(np.linalg.norm(moved), longest)

    def _remember(self, seen, away, distance):
        client, first = seen.client, seen.client not in self.histories
        radius = lower_median(list(self.recent.values())) ** 2
        # What is not clipped is as it came: of two uploads of zeros rounding would be all there is.
        clipped = self.centre + unit(away) * radius if distance > radius else seen.gradient
        nothing = {"mean": 0.0, "variance": 0.0, "count": 0}
        mine = self.curvature.setdefault(client, (dict(nothing), dict(nothing)))
        if not first:
            moved, last = seen.base - self.bases[client], self.last[client]
            by_others = moved - (moved @ last) / max(last @ last, 1e-30) * last
            if np.linalg.norm(by_others) > 0.1 * np.linalg.norm(moved):
                self._compare(mine[0], by_others, clipped, last)
            self._compare(mine[1], moved, clipped, last)
        count = self.counts.get(client, 0)
        kept = min(count / (count + 1), self.momentum)
        left = min(distance, radius) / distance if distance else 1.0
        self.kept[client] = kept * self.kept.get(client, 0.0) + (1 - kept) * left
        before = self.histories.get(client, 0 * clipped)
        self.histories[client] = kept * before + (1 - kept) * clipped
        self.last[client], self.bases[client], self.counts[client] = clipped, seen.base, count + 1

    def _compare(self, mine, moved, upload, last):
        changed = upload - last
        lengths = np.linalg.norm(moved) * np.linalg.norm(changed)
        if lengths == 0 or np.linalg.norm(changed) <= 1e-4 * np.linalg.norm(upload):
            return
        rate = max(1 / (mine["count"] + 1), 1 - self.momentum)
        away = moved @ changed / lengths - mine["mean"]
        mine["variance"] = (1 - rate) * (mine["variance"] + rate * away**2)
        mine["mean"] += rate * away
        mine["count"] += 1

    def _trust(self):
        clients = sorted(self.histories)
        curved = []
        for kind in range(2):
            stats = [self.curvature[client][kind] for client in clients]
            curved.append(curvature_weights(stats, self.momentum, [True] * len(stats), credit=2))
        curved = np.minimum(*curved)
        median = max(lower_median(list(self.kept.values())), 1e-30)
        spared = [rise(self.kept[client] / median, 0.25, 0.35) for client in clients]
        curved = [w * kept for w, kept in zip(curved, spared, strict=True)]
        trust = dict.fromkeys(clients, 0.0)
        left = [client for client, weight in zip(clients, curved, strict=True) if weight > 0]
        histories = [self.histories[client] for client in left]
        if left:
            kinds = [kind(histories) for kind in (novelty_weights, group_weights)]
            so_far = [self.trust.get(client, 1.0) for client in left]
            kinds.append(neighbour_weights(histories, so_far))
            if self.num_clients < 20:
                kinds.append(length_weights(histories))
            curved = dict(zip(clients, curved, strict=True))
            for client, *weights in zip(left, *kinds, strict=True):
                trust[client] = curved[client] * np.prod(weights)
        return trust

    def _spend(self, client):
        if self.num_clients == 1:
            return 1.0
        saved = self.earned[client]
        spent = min(1.0, saved)
        others = max(1, len(self.histories) - 1)
        self.earned = [min(5.0, value + 1.5 / others) for value in self.earned]
        self.earned[client] = saved - spent
        return spent
