"""Plain tensor algebra without dispatch: vectors, rows, order statistics, distances, clusters."""
