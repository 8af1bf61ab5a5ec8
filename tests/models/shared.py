"""What several files of tests/models share."""

from __future__ import annotations

import json

from megatile.models.config import SHIPPED


def llama(**changes: object) -> dict[str, object]:
    return {**json.loads((SHIPPED / "Llama-3.1-8B.json").read_text()), **changes}


LLAMA = {"machine": "dgx-h100", "tp": 2}
