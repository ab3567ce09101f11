"""Make the pictures of README from the two runs of the quickstart, with Chromium.

make quickstart
python docs/make_pictures.py .
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from run_examples import Runner

PICTURES = Path(__file__).parent / "pictures"
RUNS = "runs/quickstart/decoder runs/quickstart/encoder"
WIDTH, WIDE, HEIGHT = 1000, 1200, 900


def report(page: Page, folder: Path) -> None:
    """The top of a run's report: its figures and loss curves."""
    page.goto((folder / "runs/quickstart/encoder/report.html").resolve().as_uri())
    page.wait_for_timeout(1000)
    save(page, "report")


def playground(page: Page, address: str) -> None:
    """A continued text, its tokens coloured by their probability."""
    page.set_viewport_size({"width": WIDE, "height": HEIGHT})  # for the table of tokens
    page.goto(address)
    page.get_by_role("tab", name="Generate", exact=True).click()
    prompt = page.locator("#completions-text textarea")
    prompt.fill("Once upon a time")
    page.get_by_text("Settings").first.click()
    page.locator("#completions-seed textarea, #completions-seed input").first.fill("0")
    page.locator("#completions-temperature textarea, #completions-temperature input").first.fill(
        "0.7"
    )
    page.get_by_text("Settings").first.click()
    page.locator("#completions-run").click()
    page.wait_for_timeout(8_000)
    save(page, "playground")


def save(page: Page, name: str) -> None:
    """A screenshot with 64 colours, which are enough and make it small."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(64, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    """Make both pictures."""
    folder = Path(sys.argv[1])
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with Runner(folder) as runner, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-US")
        report(page, folder)
        serving = runner.run(f"trivium serve {RUNS} --port 8023 --preload")
        (address,) = re.findall(r"http://\S+", serving)
        playground(page, address)
        browser.close()


if __name__ == "__main__":
    main()
