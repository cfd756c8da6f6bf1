"""Prints the page to PDF with headless Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestration.core.errors import NotReadyError, unwritable
from orchestration.core.files import whole_file

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALL = "sudo apt-get install chromium, then give the same command again"
_LIMIT_S = 300


def find_browser() -> str:
    """Return the path of Chromium. Raises NotReadyError if there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise NotReadyError("a PDF is printed by Chromium, which is not installed here", _INSTALL)


def print_page(html: str, path: Path) -> None:
    """Print a page to the PDF file `path`, replacing it atomically.

    Raises NotReadyError without Chromium, if it fails, or if the file cannot be written.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="closloop-pdf-", ignore_cleanup_errors=True) as place:
        page, printed = Path(place) / "page.html", Path(place) / "page.pdf"
        page.write_text(html, encoding="utf-8")
        argv = printing_command(browser, page, printed, Path(place) / "profile")
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S)
            said = done.stderr.strip().splitlines()
        except subprocess.TimeoutExpired:
            said = [f"it took over {_LIMIT_S} s"]
        if not printed.is_file():
            raise NotReadyError(
                f"{browser} printed nothing: {said[-1] if said else 'it says nothing'}",
                "open the page in a browser and print it there",
            )
        try:
            with whole_file(path) as partial:
                shutil.copyfile(printed, partial)
        except OSError as error:
            raise unwritable(path, error, "make room there or make it writable") from error


def printing_command(browser: str, page: Path, printed: Path, profile: Path) -> list[str]:
    """Return the command that prints a page, with its own profile and without network access."""
    return [
        browser,
        "--headless",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        # Chromium's sandbox does not work as root
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        f"--user-data-dir={profile}",
        "--no-pdf-header-footer",
        f"--print-to-pdf={printed}",
        page.as_uri(),
    ]
