"""The JSON schema of a report: doctor.schema.json. Run as a program it prints what belongs into that file."""

import json
from importlib import resources
from typing import Any

from pydantic import TypeAdapter

from dspark.doctor.report import Report

FILE = "doctor.schema.json"


def generated() -> dict[str, Any]:
    """From the types that reports are made of."""
    schema = TypeAdapter(Report).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def shipped() -> dict[str, Any]:
    """As it lies beside this file."""
    return dict(json.loads(resources.files("dspark.doctor").joinpath(FILE).read_text(encoding="utf-8")))


if __name__ == "__main__":
    print(json.dumps(generated(), indent=2))  # noqa: T201
