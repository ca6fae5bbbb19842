"""The tables and figures of the paper, each with one command."""
