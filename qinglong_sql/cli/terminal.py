"""What a terminal may be told: texts from outside neither move, erase, rename nor ask anything."""

import re

COLOURING = re.compile(r"\x1b\[[0-9;:]*m")
# Escape sequences that move, erase, rename or ask, and other signs that are none.
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def calm(text: str, *, colours: bool = True) -> str:
    """The text with its lines and, if wanted, its colours; sequences go, other signs are shown."""
    if text.isprintable():
        return text
    parts, at = [], 0
    for found in COLOURING.finditer(text):
        parts += [_CONTROL.sub(_shown, text[at : found.start()]), found[0] if colours else ""]
        at = found.end()
    return "".join([*parts, _CONTROL.sub(_shown, text[at:])])


def _shown(found: re.Match[str]) -> str:
    if len(found[0]) > 1:
        return ""
    code = ord(found[0])
    return f"^{chr(code ^ 64)}" if code < 128 else "�"
