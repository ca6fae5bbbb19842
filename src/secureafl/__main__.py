"""`python -m secureafl`."""

from secureafl.cli.app import main

main()
