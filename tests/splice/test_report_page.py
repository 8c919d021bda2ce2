"""The report in a browser: nothing is requested, nothing is wider than the screen, charts are seen, keys reach what can be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from splice.report import write_report

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
WIDTHS = (1280, 360)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A headless Chromium, with its console and its network in the log."""
    pytest.importorskip("selenium", reason="no selenium here")
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("no Chromium here (apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(executable_path=str(DRIVER)), options=options)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, built: Path) -> dict[str, Path]:
    """The page of one dataset, and that of two."""
    folder = tmp_path_factory.mktemp("pages")
    write_report([built], folder / "one.html")
    write_report([built, built], folder / "two.html")
    return {"one": folder / "one.html", "two": folder / "two.html"}


def show(browser, page: Path, width: int = 1280, theme: str = "light") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.get(page.as_uri())


def background(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("which", ["one", "two"])
def test_it_asks_for_nothing_and_complains_of_nothing(browser, pages, which):
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    show(browser, pages[which])
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in requested if not url.startswith("data:")] == [pages[which].as_uri()]


@pytest.mark.parametrize("which", ["one", "two"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_as_wide_as_the_screen_and_its_charts_are_seen(browser, pages, which, width):
    show(browser, pages[which], width)
    content, screen = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert screen == width  # a phone would zoom out for content that is wider
    assert content <= screen
    charts = browser.execute_script(
        "return [...document.querySelectorAll('figure.chart')].map(f => {"
        "const box = f.querySelector('svg').getBoundingClientRect();"
        "const texts = [...f.querySelectorAll('svg text')].map(t => t.getBoundingClientRect());"
        "return [f.id, box.width, box.height, Math.min(...texts.map(t => t.height)),"
        " Math.min(...texts.map(t => t.left)), Math.max(...texts.map(t => t.right))]})"
    )
    assert len(charts) == {"one": 18, "two": 22}[which]
    for name, wide, high, smallest, left, right in charts:
        assert wide > 250, name
        assert high > 50, name
        assert smallest > 8, name
        assert left >= 0, name
        assert right <= width, name


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_of_flows_stay_in_their_figures(browser, built, tmp_path, width):
    path = shutil.copytree(built, tmp_path / "long")
    manifest = json.loads((path / "manifest.json").read_text())
    (counts,) = manifest["ledger"]["sources"].values()
    counts = {**counts, "near_duplicate": 12, "filtered": {"contaminated_by_mmlu": 400}, "left_out_tokens": 10_000}
    manifest["ledger"]["sources"] = {
        "organisation/a-repository-of-some-name": counts,
        "sources/web-pages-of-2024": counts,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    write_report([path], tmp_path / "long.html")
    show(browser, tmp_path / "long.html", width)
    texts = browser.execute_script(
        "return [...document.querySelectorAll('figure[id^=flow] svg')].flatMap(s => {"
        "const box = s.getBoundingClientRect(); return [...s.querySelectorAll('text')].map(t => {"
        "const r = t.getBoundingClientRect(); return [t.textContent, r.left - box.left, box.right - r.right]})})"
    )
    assert len(texts) > 10
    for text, left, right in texts:
        assert min(left, right) >= 0, text


def test_charts_say_what_their_axes_are(browser, pages):
    show(browser, pages["one"])
    texts = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('figure.chart')].map(f =>"
        "[f.id, [...f.querySelectorAll('svg text')].map(t => t.textContent)]))"
    )
    titles = {
        "related-zipf": ["exponent of the zeta distribution"],
        "related-compression": ["bytes saved by compressing together (%)"],
        "scores": ["score of a document for the one that retrieved it", "share of the edges (%)"],
        "score-by-step": ["place of the document in its example", "score"],
        "score-through-walk": ["share of the pack's examples made (%)", "score"],
        "documents-per-example": ["documents in an example", "share of the examples (%)"],
        "document-length": ["tokens of a document", "share of the documents (%)"],
        "fill": ["share of the shards' tokens (%)"],
        "tree-0": ["position in the example (tokens)", "depth (steps)"],
        "strip-0": ["position in a row of 32 tokens", "row of the example"],
        "flow-documents-0": ["sources", "became"],
    }
    for name, wanted in titles.items():
        assert set(wanted) <= set(texts[name]), name
    labelled = browser.execute_script(
        "return [...document.querySelectorAll('[role=img]')].map(e => e.getAttribute('aria-label'))"
    )
    assert len(labelled) == len(texts)
    assert all(len(label) > 20 for label in labelled)


def test_figures_are_the_manifests(browser, pages, built):
    manifest = json.loads((built / "manifest.json").read_text())
    sources = manifest["ledger"]["sources"].values()
    wanted = {
        "ledger.examples": manifest["ledger"]["examples"],
        "ledger.sources.*.documents_in": sum(s["documents_in"] for s in sources),
        "ledger.sources.*.packed": sum(s["packed"] for s in sources),
        "ledger.sources.*.tokens_in": sum(s["tokens_in"] for s in sources),
        "settings.length": manifest["settings"]["length"],
    }
    show(browser, pages["one"])
    shown = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('td[data-key]')].map(c => [c.dataset.key, c.innerText]))"
    )
    assert {key: int(shown[key].replace(",", "")) for key in wanted} == wanted


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(browser, pages, theme):
    show(browser, pages["one"], theme=theme)
    first = background(browser)
    assert (sum(map(int, first[4:-1].split(","))) > 380) == (theme == "light")
    line = "return getComputedStyle(document.querySelector('#scores svg path[style*=series-0]')).fill"
    drawn = browser.execute_script(line)
    button = browser.find_element("id", "theme")
    assert button.text == {"light": "Dark theme", "dark": "Light theme"}[theme]
    button.click()
    assert background(browser) != first
    assert browser.execute_script(line) != drawn
    button.click()
    assert background(browser) == first
    assert browser.execute_script(line) == drawn


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser, pages, theme):
    show(browser, pages["one"], theme=theme)
    colours = browser.execute_script(
        "const probe = document.body.appendChild(document.createElement('i'));"
        "const rgb = name => {probe.style.color = `var(--${name})`; return getComputedStyle(probe).color};"
        "return Object.fromEntries(['ink', 'muted', 'accent', 'paper', 'alarm', 'series-0', 'series-1', 'series-2', 'series-3', 'series-4', 'series-5',"
        "'tint-0', 'tint-1', 'tint-2', 'tint-3', 'tint-4', 'tint-5'].map(n => [n, rgb(n)]))"
    )

    def luminance(name: str) -> float:
        channels = [int(c) / 255 for c in colours[name][4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for text, behind in [("ink", "paper"), ("muted", "paper"), ("accent", "paper"), ("ink", "alarm")]:
        assert contrast(text, behind) >= 4.5, (text, behind)
    for i in range(6):
        assert contrast("ink", f"tint-{i}") >= 7, i
    for i in range(6):
        assert contrast(f"series-{i}", "paper") >= 3, i


def test_keys_reach_what_can_be_used(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["one"])
    reached = []
    for _ in range(12):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.append(
            browser.execute_script(
                "const e = document.activeElement, s = getComputedStyle(e);"
                "return [e.id || e.className || e.tagName, s.outlineStyle, e.getBoundingClientRect().left >= 0]"
            )
        )
    names = [name for name, _, _ in reached]
    assert names[0] == "skip"
    assert names[1] == "theme"
    assert "SUMMARY" in names
    assert all(outline != "none" and seen for _, outline, seen in reached)
    details = "return document.activeElement.parentElement.open"
    assert browser.execute_script("return document.activeElement.tagName") == "SUMMARY"
    before = browser.execute_script(details)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script(details) != before


def test_headings_are_in_order_and_the_page_reads_without_its_script(browser, pages):
    show(browser, pages["one"])
    levels = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.execute_script("return document.documentElement.lang") == "en"
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, pages["one"])
        assert "examples" in browser.find_element("id", "headline").text
        assert not browser.find_element("id", "theme").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
