"""Colours, style sheet, figure style and labels of runs, shared by pages and figures."""
