"""Reads a page that tells a story of programs and commands: what a reader runs, and what the page says it prints.

Three kinds of code blocks are allowed:

- `python`: a program. Its first line is `# NAME`; it is saved under this name and started with `python NAME`.
- `sh`: commands, one in each line.
- `text`: what the program or command just before prints. `...` stands for any text within a line. A line with only
  `...` stands for any number of lines. A program or command without such a block prints nothing.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True, slots=True)
class Step:
    """A program or a command of a page.

    Args:
        command: what the reader types.
        printed: what it prints, as the page shows it.
        line: where it begins on the page.
        program: the text that the reader first saves; None for a command.
        name: the name of the file for it.
    """

    command: str
    printed: str
    line: int
    program: str | None = None
    name: str = ""


def steps_of(page: str) -> list[Step]:
    """The programs and commands of a page, in order.

    Raises:
        ValueError: a block is of an unknown kind, a program has no name, or a `text` block does not come directly after
            a program or one single command.
    """
    steps: list[Step] = []
    open_end = False  # whether a block of text may follow
    for found in _BLOCK.finditer(page):
        kind, text = found[1], found[2]
        line = page.count("\n", 0, found.start()) + 1
        if kind == "python":
            name = _NAME.match(text)
            if name is None:
                raise ValueError(f"line {line}: expected the program to begin with '# NAME.py'")
            steps.append(Step(f"python {name[1]}", "", line, text, name[1]))
            open_end = True
        elif kind == "sh":
            commands = text.splitlines()
            steps += [Step(command, "", line + number) for number, command in enumerate(commands, 1)]
            open_end = len(commands) == 1
        elif kind == "text" and open_end:
            last = steps[-1]
            steps[-1] = Step(last.command, text, last.line, last.program, last.name)
            open_end = False
        elif kind == "text":
            raise ValueError(f"line {line}: expected the text to follow a program, or a block of one command")
        else:
            raise ValueError(f"line {line}: expected a block of python, sh or text, got: {kind or 'no kind'}")
    return steps


def difference(step: Step, printed: str) -> str:
    """How the output of a step differs from the page, as a unified diff; empty if it does not."""
    if _pattern(step.printed).fullmatch(printed):
        return ""
    shown, got = step.printed.splitlines(), printed.splitlines()
    lines = difflib.unified_diff(shown, got, f"the page, line {step.line}", step.command, lineterm="")
    return "\n".join(lines) or f"{step.command}: the output ends with other white space than on the page"


def _pattern(shown: str) -> re.Pattern[str]:
    parts = ["(?:.*\n)*?" if line == "...\n" else _line(line) for line in shown.splitlines(keepends=True)]
    return re.compile("".join(parts))


def _line(line: str) -> str:
    return r"[^\n]*?".join(re.escape(part) for part in line.split("..."))
