"""The convergence bound of the paper's Theorem 1, on a problem whose constants are known."""
