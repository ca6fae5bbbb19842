"""Figures, tables and one HTML page from run folders. Never imports torch."""
