"""Short forms for the JSON schemas of API answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
SWITCH: Schema = {"type": "boolean"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


TEXT_OR_NONE: Schema = nullable(TEXT)
INTEGER_OR_NONE: Schema = nullable(INTEGER)


def record(**fields: Schema) -> Schema:
    """An object with these fields, all of them present; it may have more."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def mapping(value: Schema) -> Schema:
    """An object whose names are data, each with a value of this schema."""
    return {"type": "object", "additionalProperties": value}


def listing(name: str, item: Schema, **more: Schema) -> Schema:
    """An object with a list of items under this name."""
    return record(**{name: array(item), **more})
