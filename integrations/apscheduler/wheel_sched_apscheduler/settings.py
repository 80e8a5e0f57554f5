"""Settings as an ini file or the environment gives them: text is read as what it stands for, or named as a problem."""

from __future__ import annotations

from typing import Any

_YES = ("1", "true", "yes", "on", "t", "y")
_NO = ("0", "false", "no", "off", "f", "n")


def whole(name: str, value: Any, least: int, greatest: int | None, problems: list[str]) -> int:
    """A whole number within bounds; any other is added to `problems`."""
    number = value
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            number = None
    if type(number) is int and number >= least and (greatest is None or number <= greatest):
        return number
    bounds = f"from {least} up" if greatest is None else f"from {least} to {greatest}"
    problems.append(f"expected {name} to be a whole number {bounds}, got: {value!r}")
    return least


def seconds(name: str, value: Any, least: float, greatest: float, problems: list[str]) -> float:
    """A time in seconds within bounds; any other is added to `problems`."""
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if isinstance(number, int | float) and not isinstance(number, bool) and least <= number <= greatest:
        return number
    problems.append(f"expected {name} to be from {least:g} to {greatest:g} (seconds), got: {value!r}")
    return least


def flag(name: str, value: Any, problems: list[str]) -> bool:
    """Yes or no; anything else is added to `problems`."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in (*_YES, *_NO):
        problems.append(f"expected {name} to be true or false, got: {value!r}")
    return word in _YES
