"""What can go wrong, in words for a person. Knows nothing about the rest of the package.

Every message names what was given, what was expected and what to do, in one sentence; the command
line prints it without a traceback.
"""


class ClocsError(Exception):
    """Base of everything that clocs raises on purpose."""


class ClocsWarning(UserWarning):
    """Something that a person should know, and that stopped nothing."""


class SourceError(ClocsError):
    """A source is not what it claims to be, or cannot be read at all."""


class UnusableError(ClocsError):
    """One recording cannot be used; it goes to quarantine with its reason.

    Attributes:
        reason: One of `REASONS`, for counting.
        detail: What exactly was found, for a person.
    """

    REASONS = (
        "truncated",
        "unreadable",
        "nan",
        "flat",
        "no known lead",
        "too short",
        "no label",
        "unknown label",
        "duplicate id",
    )

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in self.REASONS:
            raise ValueError(f"{reason!r} is not one of {self.REASONS}")
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class StoreError(ClocsError):
    """A store is missing, incomplete, damaged or of another version."""


class CheckpointError(ClocsError):
    """A checkpoint is missing, damaged, or does not fit what it is used for."""


class BusyError(ClocsError):
    """Another process is writing the same folder."""


class LeakError(ClocsError):
    """Patients on whom an encoder was trained are among those it would be tested on."""


class SettingError(ClocsError):
    """A setting given by the user has no meaning here."""


class TrainingError(ClocsError):
    """A training diverged."""
