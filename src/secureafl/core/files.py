"""Files that others may be reading."""

import os
from pathlib import Path


def put_file(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
