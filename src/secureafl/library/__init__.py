"""The package from Python: run, compare and fit; results to hold; the trained model."""
