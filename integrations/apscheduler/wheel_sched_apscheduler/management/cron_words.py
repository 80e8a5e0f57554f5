"""The eight fields of a cron trigger in plain words, such as "at 02:30 on weekdays". The functions are pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_POSITIONS = {"1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth", "last": "last"}
_TIMES = 6  # at most this many times of day are listed
_LISTED = 12  # at most this many numbers are listed
_RANGE = re.compile(r"(\*|[a-z]+|\d+)(?:-([a-z]+|\d+))?(?:/(\d+))?")


def cron_sentence(fields: Mapping[str, str]) -> str:
    """The times of a cron trigger in words.

    Args:
        fields: the text of each field by name: year, month, day, week, day_of_week, hour, minute, second.
    """
    times = _time_words(fields.get("hour", "*"), fields.get("minute", "*"), fields.get("second", "0"))
    days = _day_words(fields)
    if not days and times.startswith("at ") and ":" in times:
        days = "every day"
    return f"{times} {days}".strip()


def joined(parts: Sequence[str], link: str = " and ") -> str:
    """The parts as a list: "a", "a and b", "a, b and c"."""
    return link.join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def values_of(text: str, least: int, greatest: int, names: Sequence[str] = (), first: int = 0) -> list[int] | None:
    """The values that a field matches, sorted; None when there are none, or no plain numbers, such as "last".

    Args:
        text: the field, such as "*/15", "1-5,10" or "mon-fri".
        least: the smallest value of the field.
        greatest: its greatest value.
        names: names of values. Defaults to none.
        first: the value of the first name. Defaults to 0.
    """
    found: set[int] = set()
    for part in text.lower().split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        low, high, step = match.groups()
        ends = []
        for end in (low, high):
            if end in names:
                ends.append(names.index(end) + first)
            elif end is not None and end.isdigit():
                ends.append(int(end))
            elif end is None or end == "*":
                ends.append(-1)
            else:
                return None
        start, stop = ends
        if low == "*":
            start, stop = least, greatest
        elif stop < 0:
            stop = greatest if step else start
        found.update(range(max(start, least), min(stop, greatest) + 1, int(step or 1) or 1))
    return sorted(found) or None


def _time_words(hour: str, minute: str, second: str) -> str:
    hours, minutes, seconds = values_of(hour, 0, 23), values_of(minute, 0, 59), values_of(second, 0, 59)
    if hours is None or minutes is None or seconds is None:
        return f"at hour {hour}, minute {minute}, second {second}"
    if len(hours) * len(minutes) * len(seconds) <= _TIMES:
        return "at " + joined([_clock(*at) for at in product(hours, minutes, seconds)])
    during = _during(hours, minutes)
    if len(seconds) > 1:
        often = _often(seconds, "second", "minute", second)
        often += "" if len(minutes) == 60 else f" of {_numbers('minute', minutes, minute)}"
        return often + during
    of_second = f" at second {seconds[0]}" if seconds[0] else ""
    if len(minutes) > 1:
        if len(hours) == 1 and _is_run(minutes):
            return (
                f"every minute from {_clock(hours[0], minutes[0], 0)} to {_clock(hours[0], minutes[-1], 0)}{of_second}"
            )
        return _often(minutes, "minute", "hour", minute) + of_second + during
    at = f" at minute {minutes[0]}" if minutes[0] else ""
    step = _step(hours, 24)
    if step is not None:
        return ("every hour" if step == 1 else f"every {step} hours") + at + of_second
    if _is_run(hours):
        first, last = _clock(hours[0], minutes[0], 0), _clock(hours[-1], minutes[0], 0)
        return f"every hour from {first} to {last}{of_second}"
    return f"at minute {minutes[0]} of {_numbers('hour', hours, hour)}{of_second}"


def _often(values: Sequence[int], unit: str, whole: str, text: str) -> str:
    """How often within a minute or an hour: "every 5 minutes", or "at minutes 1, 2 and 9 of every hour"."""
    step = _step(values, 60)
    if step is not None:
        return f"every {unit}" if step == 1 else f"every {step} {unit}s"
    if _is_run(values) and len(values) > 2:
        return f"every {unit} from {values[0]} to {values[-1]} of every {whole}"
    return f"at {_numbers(unit, values, text)} of every {whole}"


def _during(hours: Sequence[int], minutes: Sequence[int]) -> str:
    """The hours to which something frequent is limited; "" for all of them."""
    if len(hours) == 24:
        return ""
    if _is_run(hours) or len(hours) == 1:
        return f" from {_clock(hours[0], 0, 0)} to {_clock(hours[-1], 59 if len(minutes) > 1 else minutes[0], 0)}"
    return f" in {_numbers('hour', hours, '')}"


def _day_words(fields: Mapping[str, str]) -> str:
    texts = {name: fields.get(name, "*") for name in ("day", "day_of_week", "month", "week", "year")}
    months = _month_words(texts["month"])
    parts = []
    if texts["day"] != "*":
        parts.append(_month_day_words(texts["day"]) + (f" of {months}" if months else " of the month"))
    if texts["day_of_week"] != "*":
        parts.append(_weekday_words(texts["day_of_week"], also=bool(parts)))
    if months and texts["day"] == "*":
        parts.append(f"in {months}")
    if texts["week"] != "*":
        weeks = values_of(texts["week"], 1, 53)
        parts.append(f"in {_numbers('week', weeks, texts['week'])} of the year")
    if texts["year"] != "*":
        years = values_of(texts["year"], 1970, 9999)
        parts.append("in " + (joined([*map(str, years)]) if years and len(years) <= _LISTED else texts["year"]))
    return " ".join(filter(None, parts))


def _weekday_words(text: str, also: bool) -> str:
    """The days of the week. `also`: the day of the month is limited too, and a run needs both."""
    days = values_of(text, 0, 6, _DAYS)
    if days is None:
        return f"on {text}"
    if len(days) == 7:
        return ""
    if also:
        return "if that is a " + joined([_DAY_NAMES[day] for day in days], " or ")
    if days == [0, 1, 2, 3, 4]:
        return "on weekdays"
    if days == [5, 6]:
        return "on weekends"
    if _is_run(days) and len(days) > 2:
        return f"on {_DAY_NAMES[days[0]]} to {_DAY_NAMES[days[-1]]}"
    return "on " + joined([f"{_DAY_NAMES[day]}s" for day in days])


def _month_day_words(text: str) -> str:
    parts = []
    plain = []
    for part in (each.strip() for each in text.lower().split(",")):
        position, _, day = part.partition(" ")
        if part == "last":
            parts.append("the last day")
        elif position in _POSITIONS and day.strip() in _DAYS:
            parts.append(f"the {_POSITIONS[position]} {_DAY_NAMES[_DAYS.index(day.strip())]}")
        else:
            plain.append(part)
    if plain:
        days = values_of(",".join(plain), 1, 31)
        parts.insert(0, _numbers("day", days, ",".join(plain)))
    return "on " + joined(parts)


def _month_words(text: str) -> str:
    if text == "*":
        return ""
    months = values_of(text, 1, 12, _MONTHS, 1)
    if months is None:
        return text
    if len(months) == 12:
        return ""
    if _is_run(months) and len(months) > 2:
        return f"{_MONTH_NAMES[months[0] - 1]} to {_MONTH_NAMES[months[-1] - 1]}"
    return joined([_MONTH_NAMES[month - 1] for month in months])


def _numbers(unit: str, values: Sequence[int] | None, text: str) -> str:
    """Numbers with their unit: "minute 5", "days 1 and 15", "days 1 to 7"; the text of the field when they are many."""
    if values is None:
        return f"{unit} {text}"
    if len(values) == 1:
        return f"{unit} {values[0]}"
    if _is_run(values) and len(values) > 2:
        return f"{unit}s {values[0]} to {values[-1]}"
    if len(values) > _LISTED and text:
        return f"{unit}s {text}"
    return f"{unit}s {joined([*map(str, values)])}"


def _step(values: Sequence[int], size: int) -> int | None:
    """The step with which the values divide the whole evenly, from 0; None when they do not."""
    step = values[1] - values[0] if len(values) > 1 else 0
    return step if step and size % step == 0 and list(values) == list(range(0, size, step)) else None


def _is_run(values: Sequence[int]) -> bool:
    """Whether the values follow each other without a gap."""
    return len(values) > 1 and values[-1] - values[0] == len(values) - 1


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")
