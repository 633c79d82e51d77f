"""What can go wrong, as sentences a person can act on."""

from __future__ import annotations


class EagleLensError(Exception):
    """Its message is one clear sentence for the screen, with the remedy."""


class LaneError(EagleLensError):
    """A lane's server could not be reached, refused a request or broke off."""


class LaneRefusedError(LaneError):
    """The server answered, and declined."""


class RecordingError(EagleLensError):
    """A recording could not be read or written."""
