"""The config.json files of published models."""

import json
from pathlib import Path
from typing import Any, Final

MODELS: Final = Path(__file__).parent / "fixtures" / "models"


def published(name: str, **changes: object) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return {**config, **changes}
