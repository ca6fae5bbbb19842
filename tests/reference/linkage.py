"""The first single-linkage cluster with a majority, edge by edge."""


def majority(distances):
    """Members of the first cluster of more than half the points; equal edges join together."""
    count = len(distances)
    clusters = [{k} for k in range(count)]
    edges = sorted((distances[i][j], i, j) for i in range(count) for j in range(i))
    place = 0
    while not (large := [c for c in clusters if len(c) >= count // 2 + 1]):
        length = edges[place][0]
        while place < len(edges) and edges[place][0] <= length:
            _, i, j = edges[place]
            one = next(c for c in clusters if i in c)
            other = next(c for c in clusters if j in c)
            if one is not other:
                clusters = [c for c in clusters if c is not one and c is not other]
                clusters.append(one | other)
            place += 1
    return sorted(large[0])
