"""The page and the explorer in a real browser: typed into, pointed at, reopened, and with hostile texts."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytest.importorskip("fastapi", reason="the extra web is not installed")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from test_explanation import explanation
from whymatch import Explainer
from whymatch.web.server import Limits, create_app

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="there is no chromium with its driver here"),
    pytest.mark.filterwarnings("ignore"),
]
HOSTILE = "</script><img src=x onerror=document.title='owned'>"
SHOTS = os.environ.get("WHYMATCH_SHOTS")  # a folder to keep screenshots in


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def wide(browser):
    browser.set_window_size(1200, 1000)
    browser.get("about:blank")


@pytest.fixture(scope="module")
def address(folders):
    import uvicorn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    explainers = [Explainer(folders(kind), layer=2) for kind in ("bert", "roberta")]
    app = create_app(explainers, Limits(characters=500))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


def shot(browser, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(exist_ok=True)
        browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))


def until(browser, condition, seconds: float = 15):
    return WebDriverWait(browser, seconds).until(lambda _: condition())


def find(browser, css: str):
    return browser.find_element(By.CSS_SELECTOR, css)


def every(browser, css: str):
    return browser.find_elements(By.CSS_SELECTOR, css)


def complaints(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def open_page(browser, why, tmp_path, name="page"):
    path = tmp_path / f"{name}.html"
    path.write_text(why.to_html(), encoding="utf-8")
    browser.get(path.as_uri())
    until(browser, lambda: every(browser, ".wm-token"))


# --- the page, from disk


def test_the_page_lights_up_what_a_token_matched(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    assert find(browser, ".wm-score").text == "0.7500"
    coffee = every(browser, ".wm-text")[0].find_elements(By.CSS_SELECTOR, ".wm-token")[3]
    webdriver.ActionChains(browser).move_to_element(coffee).perform()
    until(browser, lambda: "coffee +0.750 in total: ! +0.500, coffee +0.250" in find(browser, ".wm-says").text)
    assert len(every(browser, "td.wm-on")) == 2
    assert find(browser, "td.wm-mark").text == "0.500"
    coffee.click()
    webdriver.ActionChains(browser).move_to_element(find(browser, "h1")).perform()
    assert "coffee +0.750" in find(browser, ".wm-says").text, "a click pins"
    assert coffee.get_attribute("aria-pressed") == "true"
    shot(browser, "page-pinned")
    assert complaints(browser) == []


def test_words_and_the_threshold(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    find(browser, "input[value=words]").click()
    labels = [token.text for token in every(browser, ".wm-text:first-child .wm-token")]
    assert labels == ["unbelievable", "coffee"]
    cells = [cell.text for cell in every(browser, "tbody td")]
    assert cells == ["0.150", "−0.150", "0.250", "0.500"]
    slider = find(browser, "input[type=range]")
    slider.send_keys(Keys.END)
    assert len(every(browser, "td.wm-faint")) == 3
    find(browser, "input[value=tokens]").click()
    assert len(every(browser, ".wm-text:first-child .wm-token")) == 4


def test_the_page_by_keyboard_alone(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    body = find(browser, "body")
    for _ in range(12):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        if "wm-token" in (browser.switch_to.active_element.get_attribute("class") or ""):
            break
    assert "wm-token" in browser.switch_to.active_element.get_attribute("class")
    webdriver.ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ENTER).perform()
    assert browser.switch_to.active_element.get_attribute("aria-label").startswith("##believ, ")
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "true"
    webdriver.ActionChains(browser).send_keys(Keys.ARROW_DOWN).perform()
    assert browser.switch_to.active_element.get_attribute("aria-label").startswith("!, ")
    webdriver.ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not every(browser, '[aria-pressed="true"]')
    assert body


def test_a_hostile_text_is_text(browser, tmp_path):
    why = explanation(text_a=HOSTILE, tokens_a=(HOSTILE, "b", "c", "d"))
    open_page(browser, why, tmp_path)
    assert every(browser, ".wm-token")[0].text == HOSTILE
    assert browser.title != "owned"
    assert not every(browser, "img")


def test_notebook_frames_stand_beside_each_other(browser, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text("<body>" + explanation()._repr_html_() + explanation(score=0.5)._repr_html_(), encoding="utf-8")
    browser.get(path.as_uri())
    frames = every(browser, "iframe")
    scores = []
    for frame in frames:
        browser.switch_to.frame(frame)
        until(browser, lambda: every(browser, ".wm-score"))
        scores.append(find(browser, ".wm-score").text)
        browser.switch_to.default_content()
    assert scores == ["0.7500", "0.5000"]


def test_a_picture_has_its_patches_laid_over(browser, tmp_path):
    import numpy as np
    from PIL import Image

    from whymatch.picture import thumbnail

    boxes = ((0, 0, 0, 0), *((x, y, x + 50, y + 40) for y in (0, 40) for x in (0, 50)))
    why = explanation(
        matrix=np.arange(20).reshape(4, 5) / 100 - 0.05,
        effects_b=np.zeros(5),
        tokens_b=("[CLS]", "0,0", "0,1", "1,0", "1,1"),
        offsets_b=((0, 0),) * 5,
        kinds_b=("special", *["patch"] * 4),
        boxes_b=boxes,
        image_b=thumbnail(Image.new("RGB", (100, 80), "white")),
        units=("token", "patch"),
    )
    open_page(browser, why, tmp_path, "picture")
    patches = every(browser, ".wm-picture .wm-token")
    assert len(patches) == 4
    image = find(browser, ".wm-picture img").rect
    assert patches[3].rect["x"] == pytest.approx(image["x"] + image["width"] / 2, abs=2)
    webdriver.ActionChains(browser).move_to_element(patches[3]).perform()
    until(browser, lambda: find(browser, ".wm-says").text.startswith("1,1 "))
    shot(browser, "page-picture")


# --- the explorer


def ready(browser, address):
    browser.get(address)
    until(browser, lambda: browser.execute_script("return document.body.dataset.ready") == "yes")


def explain(browser, a: str, b: str) -> None:
    for name, text in (("a", a), ("b", b)):
        field = find(browser, f"#{name}")
        field.clear()
        field.send_keys(text)
    find(browser, "#go").click()
    until(browser, lambda: find(browser, "#status").text.startswith("Done") or find(browser, "#error").text)


def test_type_explain_and_reopen_the_link(browser, address):
    ready(browser, address)
    explain(browser, "The coffee is not good.", "This is bad coffee.")
    assert len(every(browser, ".panel")) == 1
    score = find(browser, ".wm-score").text
    link = browser.current_url
    assert "#" in link
    assert "coffee" in link.partition("#")[2]
    shot(browser, "explorer")
    browser.get("about:blank")
    browser.get(link)
    until(browser, lambda: every(browser, ".wm-score"))
    assert find(browser, ".wm-score").text == score
    assert find(browser, "#a").get_attribute("value") == "The coffee is not good."
    assert complaints(browser) == []


def test_another_layer_and_another_model_stand_beside_it(browser, address):
    ready(browser, address)
    find(browser, "#compare").click()
    explain(browser, "The coffee is not good.", "This is bad coffee.")
    find(browser, "#layer").send_keys(Keys.ARROW_LEFT)
    assert find(browser, "#layer-shown").text == "1"
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".panel")) == 2)
    options = every(browser, "#model option")
    assert len(options) == 2
    options[1].click()
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".panel")) == 3)
    assert [
        panel.find_element(By.CSS_SELECTOR, ".wm-dim").text.rpartition(" ")[2] for panel in every(browser, ".panel")
    ] == ["2", "1", "2"]
    shot(browser, "explorer-compare")


def test_an_example_of_search(browser, address):
    ready(browser, address)
    next(button for button in every(browser, "#examples button") if button.text == "search").click()
    until(browser, lambda: len(every(browser, ".hit")) == 4)
    assert every(browser, ".hit mark")
    every(browser, ".hit summary")[0].click()
    until(browser, lambda: every(browser, ".hit .wm-score"))
    shot(browser, "explorer-rank")


def test_an_error_is_shown(browser, address):
    ready(browser, address)
    browser.execute_script("document.getElementById('a').value = 'x'.repeat(501)")
    find(browser, "#b").send_keys("y")
    find(browser, "#go").click()
    until(browser, lambda: "text_a has 501 characters; at most 500 are taken" in find(browser, "#error").text)


def test_the_explorer_by_keyboard_alone(browser, address):
    ready(browser, address)
    keys = webdriver.ActionChains(browser)
    keys.send_keys(
        Keys.TAB, Keys.TAB, "bad coffee", Keys.TAB, "the coffee", Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER
    ).perform()
    until(browser, lambda: every(browser, ".wm-score"))
    assert find(browser, "#a").get_attribute("value") == "bad coffee"


def test_a_narrow_screen_needs_no_sideways_scrolling(browser, address):
    browser.set_window_size(500, 900)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        ready(browser, address)
        explain(browser, "The coffee is not good, and nobody drank it in the kitchen.", "This is bad coffee.")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
        shot(browser, "explorer-narrow")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_hostile_text_is_text_in_the_explorer_too(browser, address):
    ready(browser, address)
    explain(browser, HOSTILE, "coffee")
    assert every(browser, ".wm-token")
    assert not every(browser, "#results img")
    assert browser.title == "whymatch"


def test_a_closed_tab_stops_its_work(browser, address, monkeypatch):
    from whymatch.jacobian import WATCH

    steps: list[int] = []
    ended = threading.Event()

    def slow(self, *args, **kwargs):  # noqa: ARG001
        try:
            for step in range(3000):
                WATCH.get()(step / 3000)
                steps.append(step)
                time.sleep(0.01)
        finally:
            ended.set()

    home = browser.current_window_handle
    browser.switch_to.new_window("tab")
    ready(browser, address)
    monkeypatch.setattr(Explainer, "explain", slow)
    for name in ("a", "b"):
        find(browser, f"#{name}").send_keys("coffee")
    find(browser, "#go").click()
    until(browser, lambda: steps)
    browser.close()
    browser.switch_to.window(home)
    assert ended.wait(10)
    assert len(steps) < 2500
