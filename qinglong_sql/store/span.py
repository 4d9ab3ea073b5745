"""A range as the value of an equality filter of `Store.read`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Texts from `first` on and before `past`, by byte."""

    first: str
    past: str

    @classmethod
    def prefix(cls, text: str) -> "Span":
        """All texts that begin with this one, which is ASCII and not empty."""
        return cls(text, text[:-1] + chr(ord(text[-1]) + 1))
