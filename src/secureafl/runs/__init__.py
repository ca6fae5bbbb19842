"""Run folders: written, found, read, followed while they grow, and asked in SQL."""
