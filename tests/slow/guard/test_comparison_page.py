"""The page in a real browser: no errors, no network; sorts, filters, hides; readable in light and dark, and on a phone.

Skipped where there is no Chromium.
"""

import json
import math
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poslab.comparison import write_comparison
from support.job_folders import write_job

selenium = pytest.importorskip("selenium", reason="the browser check needs Selenium: pip install '.[dev]'")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
)  # fmt: skip
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with chromedriver on this machine"),
    # A socket that Selenium leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
# Small text needs 4.5 to 1 (WCAG 2.2, 1.4.3), marks in a chart 3 to 1 (1.4.11).
TEXT, MARK = 4.5, 3.0


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with everything on it: differences, none, lost jobs, pictures, lengths."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("browser") / "sweep"
    for pos, steps in (("learned", 400), ("sinusoidal", 200)):
        for heads in (2, 4, 16):
            for seed in (1, 2, 3):
                lost = pos == "learned" and heads == 16
                write_job(
                    folder / f"{pos}-{heads}-{seed}",
                    status="diverged" if lost else "completed",
                    error="DivergedError: " + "a-long-word-without-a-break" * 12 if lost else None,
                    steps_to_99=steps * math.exp(rng.gauss(0, 0.05)),
                    # As texts, 9e-05 would come after 0.002.
                    loss=0.002 if seed == 1 else 9e-5 * seed * heads,
                    metrics={f"length/{n}/exact_match": 1 / n for n in (10, 20)},
                    pictures=0 if lost else 100,
                    overrides=[f"pos={pos}", f"model.n_heads={heads}", f"seed={seed}"],
                    pos=pos,
                    model__n_heads=heads,
                    seed=seed,
                )
    refused = [{"overrides": ["pos=learned", "model.n_heads=5"], "reason": "</script><script>document.title='x'"}]
    (folder / "invalid.json").write_text(json.dumps(refused))
    write_comparison([folder], folder)
    return folder / "comparison.html"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(str(DRIVER), log_output=os.devnull)
    driver = webdriver.Chrome(options, service)
    yield driver
    driver.quit()


@pytest.fixture
def opened(chrome: webdriver.Chrome, page: Path) -> Iterator[webdriver.Chrome]:
    """The page as a file, light and wide; afterwards, whatever was done with it, the console has to be empty."""
    look(chrome, "light")
    chrome.get_log("performance")
    chrome.get(page.as_uri())
    yield chrome
    assert chrome.get_log("browser") == []


def look(driver: webdriver.Chrome, scheme: str, width: int = 1280, height: int = 900) -> None:
    # Without motion a click meets what it was aimed at.
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": name, "value": features[name]} for name in features]}
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def column(driver: webdriver.Chrome, title: str) -> list[str]:
    """The visible texts of a column of the table of jobs."""
    return driver.execute_script(
        """const table = document.getElementById("job-table");
        const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === arguments[0]);
        return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[at].textContent);""",
        title,
    )


def click_heading(driver: webdriver.Chrome, title: str) -> Any:
    path = f"//table[@id='job-table']//th[button[text()='{title}']]"
    head = driver.find_element(By.XPATH, path)
    head.find_element(By.TAG_NAME, "button").click()
    return head.get_attribute("aria-sort")


def test_it_opens_from_a_file_and_asks_for_nothing_else(opened: webdriver.Chrome, page: Path) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert [url for url in asked if url.startswith("file:")] == [page.as_uri()]
    assert opened.title == "Comparison of 19 jobs"
    broken = "return [...document.images].filter((image) => !image.naturalWidth).length"
    assert opened.execute_script(broken) == 0
    first, second = (each.text for each in opened.find_elements(By.CSS_SELECTOR, ".findings li")[:2])
    assert first == "3 of 18 jobs did not complete: 3 diverged."
    assert "sinusoidal needs " in second


def test_a_click_on_a_heading_sorts_by_number_and_turns_round(opened: webdriver.Chrome) -> None:
    assert click_heading(opened, "n_heads") == "ascending"
    assert column(opened, "n_heads") == ["2"] * 6 + ["4"] * 6 + ["5"] + ["16"] * 6
    assert click_heading(opened, "n_heads") == "descending"
    assert column(opened, "n_heads") == ["16"] * 6 + ["5"] + ["4"] * 6 + ["2"] * 6
    assert click_heading(opened, "val loss") == "ascending"
    losses = [float(text) for text in column(opened, "val loss")[:-4]]
    assert losses == sorted(losses)
    assert len(set(losses)) == 7
    # What has no number stays last, in both directions.
    assert column(opened, "val loss")[-4:] == ["–"] * 4
    assert click_heading(opened, "val loss") == "descending"
    assert column(opened, "val loss")[-4:] == ["–"] * 4
    sorts = opened.execute_script(
        "return [...document.querySelectorAll('#job-table th')].map((head) => head.getAttribute('aria-sort'))"
    )
    assert sorted(set(sorts)) == ["descending", "none"]
    assert sorts.count("descending") == 1


def test_a_filter_leaves_the_rows_with_all_its_words(opened: webdriver.Chrome) -> None:
    opened.find_element(By.ID, "filter").send_keys("sinusoidal-16 completed")
    assert column(opened, "job") == ["sinusoidal-16-1", "sinusoidal-16-2", "sinusoidal-16-3"]
    assert opened.find_element(By.ID, "left").text == "3 of 19"


def test_all_columns_on_demand(opened: webdriver.Chrome) -> None:
    head = opened.find_element(By.XPATH, "//table[@id='job-table']//th[button[text()='attention parameters']]")
    assert not head.is_displayed()
    opened.find_element(By.ID, "more").click()
    assert head.is_displayed()


def test_curves_of_all_jobs_by_setting_hidden_and_shown_by_a_click(opened: webdriver.Chrome) -> None:
    def lines() -> int:
        return len(opened.find_elements(By.CSS_SELECTOR, "#curves .line"))

    assert lines() == 18
    Select(opened.find_element(By.ID, "group")).select_by_visible_text("n_heads")
    names = opened.find_elements(By.CSS_SELECTOR, "#legend button")
    assert [name.text for name in names] == ["2", "4", "16", "all / none"]
    names[0].click()
    assert names[0].get_attribute("aria-pressed") == "false"
    assert lines() == 12
    names[0].click()
    assert lines() == 18
    opened.find_elements(By.CSS_SELECTOR, "#legend button")[-1].click()
    assert lines() == 0
    assert opened.find_element(By.CSS_SELECTOR, "#curves .empty").is_displayed()
    Select(opened.find_element(By.ID, "group")).select_by_visible_text("setting")
    assert lines() == 18
    # The diverged jobs have a history but no final numbers.
    histories, finals = (
        ("training loss", "exact match", "next-token accuracy"),
        ("exact match by length", "neighbour similarity"),
    )
    for name in (*histories, *finals):
        Select(opened.find_element(By.ID, "curve")).select_by_visible_text(name)
        assert lines() == (18 if name in histories else 15), name
    for name in ("exact match", "first step at 99 % exact match"):
        Select(opened.find_element(By.ID, "result")).select_by_visible_text(name)
        assert len(opened.find_elements(By.CSS_SELECTOR, "#parameters .dot")) == 15


def test_pointing_at_a_curve_says_whose_it_is(opened: webdriver.Chrome) -> None:
    chart = opened.find_element(By.CSS_SELECTOR, "#curves svg")
    opened.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", chart)
    tip = opened.find_element(By.CSS_SELECTOR, "#curves .tip")
    assert not tip.is_displayed()
    path = opened.find_element(By.CSS_SELECTOR, "#curves .line").get_attribute("d")
    x, y = map(float, re.findall(r"[\d.]+", str(path))[2:4])
    middle = chart.size["width"] / 2, chart.size["height"] / 2
    ActionChains(opened).move_to_element_with_offset(chart, int(x - middle[0]), int(y - middle[1])).perform()
    assert tip.is_displayed()
    assert re.search(r"(learned|sinusoidal), n_heads \d+, seed \d", tip.text)
    assert "step 20: " in tip.text


# Composited contrast of every text and chart mark against what is behind it.
CONTRAST = """
const parse = (colour) => {
  const found = colour.match(/[\\d.]+/g).map(Number);
  return found.length < 4 ? [...found, 1] : found;
};
const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
const behind = (node) => {
  const layers = [];
  for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
};
const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const ratio = (colour, paper) => {
  const [high, low] = [light(over(parse(colour), paper)), light(paper)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
};
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const style = getComputedStyle(node), drawing = node.closest("svg");
  if (!node.getClientRects().length || ["SCRIPT", "STYLE", "OPTION"].includes(node.tagName)) continue;
  const paper = behind(drawing ? drawing.parentElement : node);
  const text = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.textContent.trim());
  if (text.join("")) found.push(["text", ratio(drawing ? style.fill : style.color, paper), text.join(" ")]);
  if (node.matches(".line, .legend path")) found.push(["mark", ratio(style.stroke, paper), node.outerHTML]);
  if (node.matches(".dot, .forest .mean")) found.push(["mark", ratio(style.fill, paper), node.outerHTML]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_light_and_dark(opened: webdriver.Chrome, scheme: str) -> None:
    look(opened, scheme)
    Select(opened.find_element(By.ID, "group")).select_by_visible_text("setting")
    opened.find_element(By.ID, "more").click()
    paper = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 150) == (scheme == "dark")
    measured = opened.execute_script(CONTRAST)
    assert {kind for kind, _, _ in measured} == {"text", "mark"}
    weak = [each for each in measured if each[1] < (TEXT if each[0] == "text" else MARK)]
    assert weak == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_a_curve_stands_out(opened: webdriver.Chrome, scheme: str) -> None:
    """All eight: the page above needs fewer."""
    look(opened, scheme)
    opened.execute_script(
        """document.getElementById("legend").innerHTML = [...Array(8).keys()].map((at) =>
        `<button><svg><path d="M0 4H22" stroke="var(--c${at})"/></svg></button>`).join("")"""
    )
    marks = [each for each in opened.execute_script(CONTRAST) if each[0] == "mark" and "M0 4H22" in each[2]]
    assert len(marks) == 8
    assert [each for each in marks if each[1] < MARK] == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_scroll_sideways(opened: webdriver.Chrome, width: int) -> None:
    look(opened, "light", width)
    opened.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    # What is wider than the window has a box of its own to scroll in.
    assert opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    right = opened.execute_script("return document.querySelector('#curves svg').getBoundingClientRect().right")
    assert right <= width
