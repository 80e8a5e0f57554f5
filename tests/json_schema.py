"""Validation against JSON schemas (2020-12), for the tests of the dashboard's API and of the files in deploy/.

The library is imported at the first use: where the packages for its text formats are installed too, the import takes
three seconds of processor time, which every worker would pay. A schema is checked once, because that takes longer than
the validation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any


def validate(value: Any, schema: Mapping[str, Any]) -> None:
    """Check a value against a schema.

    Raises:
        jsonschema.ValidationError: the value is not as the schema says.
        jsonschema.SchemaError: the schema is wrong.
    """
    _validator(json.dumps(schema)).validate(value)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema is valid.

    Raises:
        jsonschema.SchemaError: it is not.
    """
    _validator(json.dumps(schema))


@cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    found = json.loads(schema)
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)
