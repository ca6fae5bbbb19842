"""Everything the package raises on purpose.

    SecureAflError
    ├── ConfigError   a setting is unknown, of the wrong type or out of range
    ├── DataError     a data file is missing, damaged or of another format
    └── RunError      a run folder is taken, damaged or cannot be written
        ├── LockedError   another process is writing it
        └── NoRunError    there is none where one was asked for

What a client sends never raises: it is refused as data (see `core.server.Server.stages`).
"""


class SecureAflError(Exception):
    """Root of the tree; the message is one line that names the value and the remedy.

    >>> try:
    ...     secureafl.from_mapping({"defense": "kardan"})
    ... except secureafl.SecureAflError as error:
    ...     print(error)
    unknown defense 'kardan'; did you mean 'kardam'?
    """


class ConfigError(SecureAflError):
    """A setting is unknown, of the wrong type or out of range.

    >>> secureafl.Experiment(defense="kardam")
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: defense = 'kardam': give the object, or use from_mapping(...)
    """


class DataError(SecureAflError):
    """A data file is missing, damaged or of another format.

    >>> samples = torch.rand(3, 2), torch.tensor([0, 1])
    >>> secureafl.from_tensors(samples, samples, "mine")
    Traceback (most recent call last):
    secureafl.core.errors.DataError: mine, training samples: inputs and labels are ...
    """


class RunError(SecureAflError):
    """A run folder is taken, damaged or cannot be written.

    >>> secureafl.results_table(["no/such/folder"])
    Traceback (most recent call last):
    secureafl.core.errors.NoRunError: no/such/folder: ...
    """


class LockedError(RunError):
    """Another process is writing the run folder."""


class NoRunError(RunError):
    """There is no run folder where one was asked for."""


def require(holds: bool, setting: str, value: object, remedy: str) -> None:
    """Raise a `ConfigError` naming the setting, its value and what is allowed, unless `holds`.

    >>> secureafl.require(True, "factor", 2.0, "give a factor above 0")
    >>> secureafl.require(False, "factor", -2.0, "give a factor above 0")
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: factor = -2.0: give a factor above 0
    """
    if not holds:
        raise ConfigError(f"{setting} = {value!r}: {remedy}")
