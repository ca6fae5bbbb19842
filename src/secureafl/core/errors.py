"""Everything the package raises on purpose.

    SecureAflError
    ├── ConfigError   a setting is unknown, of the wrong type or out of range
    ├── DataError     a data file is missing, damaged or of another format
    └── RunError      a run folder is taken, damaged or cannot be written
        └── LockedError   another process is writing it

What a client sends never raises: it is refused as data (see `core.server.Server.stages`).
"""


class SecureAflError(Exception):
    """Root of the tree; the message is one line that names the value and the remedy."""


class ConfigError(SecureAflError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(SecureAflError):
    """A data file is missing, damaged or of another format."""


class RunError(SecureAflError):
    """A run folder is taken, damaged or cannot be written."""


class LockedError(RunError):
    """Another process is writing the run folder."""


def require(holds: bool, setting: str, value: object, remedy: str) -> None:
    """Raise a `ConfigError` naming the setting, its value and what is allowed, unless `holds`."""
    if not holds:
        raise ConfigError(f"{setting} = {value!r}: {remedy}")
