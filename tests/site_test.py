# SPDX-License-Identifier: Apache-2.0
"""The site of docs/, opened from disk on a narrow screen: every page fits, nothing fails, every link leads somewhere."""

import html.parser
import pathlib
import subprocess
import sys
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = ROOT / "build/docs/html"
sys.path.append(str(ROOT / "tests/cli"))
from browser import Browser  # tests/cli

WIDTH = 380
# What is wider than the screen, so that a failure names it; wide tables and code scroll inside of themselves.
WIDER = f"""[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > {WIDTH} + 1)
    .slice(0, 3).map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def pages():
    """Made by `make docs` before, in ./test, or now."""
    if not (SITE / "index.html").exists():
        done = subprocess.run(["make", "docs"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return sorted(SITE.rglob("*.html"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.end()


class Links(html.parser.HTMLParser):
    """What a page names, and the places in it that can be named."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.places = set(), {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value and not urllib.parse.urlsplit(value).scheme:
                self.targets.add(value)
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value)


def test_every_link_inside_the_site_leads_somewhere(pages):
    links = {page: Links(page) for page in pages}
    assert len(pages) > 30 and sum(len(page.targets) for page in links.values()) > 1000
    wrong = []
    for page, found in links.items():
        for target in sorted(found.targets):
            path, place = (urllib.parse.unquote(part) for part in urllib.parse.urlsplit(target)[2::2])
            file = (page.parent / path).resolve() if path else page
            if not file.is_file() or (file in links and place not in links[file].places):
                wrong.append(f"{page.relative_to(SITE)}: {target}")
    assert wrong == []


def test_every_page_fits_a_narrow_screen_and_nothing_of_it_fails(pages, browser):
    wrong = []
    for page in pages:
        browser.open(page.as_uri(), WIDTH, touch=True)
        if browser.value("document.scrollingElement.scrollWidth") > WIDTH:
            wrong.append(f"{page.relative_to(SITE)} is too wide: {browser.value(WIDER)}")
        wrong += [f"{page.relative_to(SITE)}: {said}" for said in browser.said]
        browser.said.clear()
    assert wrong == []
