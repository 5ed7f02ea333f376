"""``python -m api.openapi [FILE]``: writes the API's description; docs/openapi.json is its output."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from api.app import create_app
from models.settings import Settings


def openapi_text() -> str:
    """The OpenAPI document as the committed file has it; independent of the environment."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings.model_construct(data_dir=Path(folder)))
        return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes to the file named, or to stdout."""
    text = openapi_text()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
