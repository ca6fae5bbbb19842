"""The few hot operations, each a function with one name whatever runs underneath."""
