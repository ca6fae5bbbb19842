"""A live page of run folders: who is poisoning the model, and how well it stands it."""
