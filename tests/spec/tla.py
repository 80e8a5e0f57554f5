"""The TLA+ modules of `docs/spec`: the names in them, and the checker that runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.spec.explorer import Model

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "spec"
TOOLS = ROOT / ".venv" / "tla"
VERSION = "0.24.11"
DEFINITION = re.compile(r"^(\w+)(?:\([\w, ]+\))? ==", re.MULTILINE)


def text_of(name: str) -> str:
    """The text of a module, without comments."""
    text = (FOLDER / f"{name}.tla").read_text("utf-8")
    return re.sub(r"\\\*.*", "", re.sub(r"\(\*.*?\*\)", "", text, flags=re.DOTALL))


def variables_of(name: str) -> list[str]:
    """The names of a module's variables, in order."""
    (found,) = re.findall(r"^VARIABLES(.*?)^vars ==", text_of(name), re.DOTALL | re.MULTILINE)
    return re.findall(r"\w+", found)


def actions_of(name: str) -> set[str]:
    """The names of the actions in the module's `Next`, except `Finished`."""
    (found,) = re.findall(r"^Next ==(.*?)^Spec ==", text_of(name), re.DOTALL | re.MULTILINE)
    return set(re.findall(r"(?:\\/|:)\s+([A-Z]\w+)", found)) - {"Finished"}


def invariants_of(name: str) -> list[str]:
    """The names of the invariants in the configuration file of the module, in order."""
    (found,) = re.findall(r"^INVARIANTS (.*)$", (FOLDER / f"{name}.cfg").read_text("utf-8"), re.MULTILINE)
    return found.split()


def safeguards_of(name: str) -> set[str]:
    """The names of the safeguards that the module's `Broken` can switch off."""
    return set(re.findall(r'Broken = "([\w-]+)"', text_of(name)))


class Checked(NamedTuple):
    """What the checker reports: "ok" or a kind of failure, the number of states, and the whole JSON answer."""

    status: str
    states: int
    answer: dict[str, Any]


def checker() -> str | None:
    """The path of the program `tla` of the crate `tla-checker`; None: it is not installed."""
    own = TOOLS / "bin" / "tla"
    return str(own) if own.exists() else shutil.which("tla")


def install() -> None:
    """Build the checker with cargo, if it is not there. This takes a few minutes.

    Raises:
        subprocess.CalledProcessError: cargo failed, and has printed why.
    """
    if checker() is None:
        command = ["cargo", "install", "--quiet", "--locked", "--root", str(TOOLS), "--version", VERSION, "tla-checker"]
        subprocess.run(command, check=True)


def check(program: str, model: Model[Any]) -> Checked:
    """Run the checker on the module of a model, within the model's bounds."""
    limits = ", ".join(f"{kind} |-> {limit}" for kind, limit in zip(model.kinds, model.limits, strict=True))
    constants = {
        "Processes": "{" + ",".join(f"p{p + 1}" for p in range(model.processes)) + "}",
        "Items": "{" + ",".join(f"i{i + 1}" for i in range(model.items)) + "}",
        "Limits": f"[{limits}]",
        "MaxFaults": str(model.faults),
        "Broken": f'"{model.broken}"',
    }
    command = [program, f"{model.name}.tla", "--json", "--max-states", "5000000"]
    for name, value in constants.items():
        command += ["--constant", f"{name}={value}"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=600)
    start = done.stdout.find('{"status"')
    if start < 0:
        raise RuntimeError(f"the checker gave no answer: {done.stdout}{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout[start:])
    return Checked(answer["status"], answer.get("stats", {}).get("states_explored", 0), answer)
