"""Open pages in headless Chromium at phone and desktop width, check them, and take screenshots.

    pip install playwright
    python docs/screenshots.py report.html docs/images/report  # report-phone.png, -desktop
    python docs/screenshots.py http://localhost:6006/ out --size 1500x1300 --wait 20  # out.png

A page fails when its console shows an error, when a script of it throws, when it asks the network
for anything (a file must be self-contained; an address may ask its own server), or when it is wider
than the window. The exit status is then 1, and a line says why.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urlsplit

# What a screenshot's name ends in: width and height of the window, screen pixels per CSS pixel.
WINDOWS = {"-phone": (390, 844, 2), "-desktop": (1280, 900, 1)}


def look(
    address: str,
    out: str | None,
    *,
    chromium: str,
    windows: dict[str, tuple[int, int, int]] = WINDOWS,
    wait: float = 0.0,
    whole: bool = False,
    dark: bool = False,
) -> list[str]:
    """Open a page in every window.

    Args:
        address: Of the page.
        out: Screenshots are ``<out><window>.png``; none where it is None.
        chromium: The browser's program.
        windows: As :data:`WINDOWS`.
        wait: Seconds to wait after loading, for pages that draw themselves.
        whole: Take the whole page, not what the window shows first.
        dark: Ask for dark colours.

    Returns:
        What is wrong, a line each.
    """
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, (width, height, scale) in windows.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                device_scale_factor=scale,
                color_scheme="dark" if dark else "light",
            )
            problems = watch(page, address)
            page.goto(address)
            page.wait_for_timeout(wait * 1000)
            found = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            if found[0] > found[1]:
                problems.append(f"the page is {found[0]} pixels wide, the window {found[1]}")
            if out is not None:
                page.screenshot(path=f"{out}{name}.png", full_page=whole)
            wrong += [f"{width} pixels: {problem}" for problem in problems]
            page.close()
        browser.close()
    return wrong


def watch(page: Any, address: str) -> list[str]:
    """A list that fills with what goes wrong in the page."""
    problems: list[str] = []
    own = urlsplit(address)

    def asked(request: Any) -> None:
        url = urlsplit(request.url)
        # What a page holds is no request; a page of a server may ask it.
        inside = (
            url.scheme in ("data", "blob") or urldefrag(request.url)[0] == urldefrag(address)[0]
        )
        if not inside and (own.scheme == "file" or url.netloc != own.netloc):
            problems.append(f"it asks for {request.url}")

    def said(message: Any) -> None:
        if message.type == "error":
            problems.append(f"console: {message.text}")

    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    return problems


def find_chromium() -> str | None:
    """A Chromium or Chrome on the search path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def size(text: str) -> tuple[int, int]:
    """Width and height, from WIDTHxHEIGHT."""
    width, height = text.split("x")
    return int(width), int(height)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", help="an HTML file, or an address; #NAME scrolls to a place")
    parser.add_argument("out", nargs="?", help="start of the screenshots' names; none: only check")
    parser.add_argument("--chromium", default=find_chromium(), help="the browser's program")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait after loading")
    parser.add_argument("--size", type=size, help="WIDTHxHEIGHT of one window, instead of two")
    parser.add_argument("--whole", action="store_true", help="take the whole page")
    parser.add_argument("--dark", action="store_true", help="ask for dark colours")
    args = parser.parse_args()
    if args.chromium is None:
        parser.error("no chromium on the search path: install it, or give --chromium")
    address = args.page
    if "://" not in address:
        file, place = urldefrag(address)
        if not Path(file).is_file():
            parser.error(f"there is no file {file}")
        address = Path(file).resolve().as_uri() + (f"#{place}" if place else "")
    wrong = look(
        address,
        args.out,
        chromium=args.chromium,
        windows={"": (*args.size, 1)} if args.size else WINDOWS,
        wait=args.wait,
        whole=args.whole,
        dark=args.dark,
    )
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
