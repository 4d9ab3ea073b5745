"""A range as the value of an equality filter of `Store.read`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Texts or numbers from `first` on and before `past`; texts by byte."""

    first: str | int
    past: str | int

    @classmethod
    def prefix(cls, text: str) -> "Span":
        """All texts that begin with this one, which is ASCII and not empty."""
        return cls(text, text[:-1] + chr(ord(text[-1]) + 1))
