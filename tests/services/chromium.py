"""The system's Chromium, for the browser tests."""

import os
import shutil

from services.process import ServiceMissingError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CURE = (
    "no Chromium: run `make chromium` (Debian and Ubuntu, as root), or install your system's chromium package, "
    "or set CAPREPLAY_TEST_CHROMIUM to the program's path"
)


def find_chromium() -> str:
    """Path of a Chromium; ServiceMissingError with the cure if there is none."""
    chosen = os.environ.get("CAPREPLAY_TEST_CHROMIUM")
    candidates = [chosen] if chosen else [shutil.which(name) for name in NAMES]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            return path
    raise ServiceMissingError(CURE)
