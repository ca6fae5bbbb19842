"""A live page of run folders: which clients look malicious, and how the model fares."""
