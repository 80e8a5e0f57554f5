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
    """A value of this schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


TEXT_OR_NONE: Schema = nullable(TEXT)
INTEGER_OR_NONE: Schema = nullable(INTEGER)


def record(**fields: Schema) -> Schema:
    """An object that has all these fields, and perhaps others."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def mapping(value: Schema) -> Schema:
    """An object with any names, such as topics. Each value has this schema."""
    return {"type": "object", "additionalProperties": value}


def listing(name: str, item: Schema, **more: Schema) -> Schema:
    """An object whose field of this name is a list of such items."""
    return record(**{name: array(item), **more})
