"""The figures of the SecureAFL paper, as data, under this package's names."""
