"""The page and the explorer in a real browser: typed into, pointed at, reopened, and with hostile texts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytest.importorskip("fastapi", reason="the extra web is not installed")

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from conftest import serve
from test_explanation import explanation
from whymatch import Explainer, Explanation
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
    explainers = [Explainer(folders(kind), layer=2) for kind in ("bert", "roberta")]
    with serve(create_app(explainers, Limits(characters=500))) as port:
        yield f"http://127.0.0.1:{port}/"


def shot(browser, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(exist_ok=True)
        browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))


def until(browser, condition, seconds: float = 15):
    # The page may replace what a condition has just found.
    passing = [StaleElementReferenceException, IndexError]
    return WebDriverWait(browser, seconds, ignored_exceptions=passing).until(lambda _: condition())


def find(browser, css: str):
    return browser.find_element(By.CSS_SELECTOR, css)


def every(browser, css: str):
    return browser.find_elements(By.CSS_SELECTOR, css)


def errors(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def open_page(browser, why, tmp_path, name="page"):
    path = tmp_path / f"{name}.html"
    path.write_text(why.to_html(), encoding="utf-8")
    browser.get(path.as_uri())
    until(browser, lambda: every(browser, ".wm-token"))


# --- the page, from disk


def point_at(browser, element) -> None:
    webdriver.ActionChains(browser).move_to_element(element).perform()


def words_of(browser, side: int):
    return every(browser, ".wm-text")[side].find_elements(By.CSS_SELECTOR, ".wm-token")


def test_the_page_highlights_what_a_word_matched(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    assert find(browser, ".wm-score").text == "0.7500"
    coffee = words_of(browser, 0)[1]
    point_at(browser, coffee)
    until(browser, lambda: "“coffee” adds +0.750 in total" in find(browser, ".wm-summary").text)
    rows = [row.text.split("\n") for row in every(browser, ".wm-summary .wm-row") if row.text.strip()]
    assert rows == [["coffee – !", "+0.500"], ["coffee – Coffee", "+0.250"]]
    assert len(every(browser, "td.wm-on")) == 2
    assert find(browser, "td.wm-mark").text == "0.500"
    coffee.click()
    point_at(browser, find(browser, "h1"))
    assert "“coffee” adds +0.750" in find(browser, ".wm-summary").text, "a click pins"
    assert coffee.get_attribute("aria-pressed") == "true"
    shot(browser, "page-pinned")
    assert errors(browser) == []


def test_texts_are_shown_as_they_were_written_and_pieces_only_when_asked_for(browser, tmp_path):
    text = "UNbelievable\n  coffee,"
    kinds = ("special", "text", "text", "text", "text", "text")
    why = explanation(
        text_a=text,
        tokens_a=("[CLS]", "un", "##believ", "##able", "coffee", ","),
        offsets_a=((0, 0), (0, 2), (2, 8), (8, 12), (15, 21), (21, 22)),
        kinds_a=kinds,
        effects_a=np.zeros(6),
        matrix=np.arange(12).reshape(6, 2) / 44,
    )
    open_page(browser, why, tmp_path)
    box = every(browser, ".wm-text")[0]
    assert [word.text for word in words_of(browser, 0)] == ["UNbelievable", "coffee", ",", "[CLS]"]
    assert box.get_property("textContent") == text + "[CLS]", "what the model adds stands after the text"
    assert "##" not in find(browser, "body").text
    find(browser, "input[value=tokens]").click()
    assert every(browser, ".wm-text")[0].get_property("textContent") == text + "[CLS]"
    assert [part.text for part in words_of(browser, 0)][:3] == ["UN", "believ", "able"]
    assert "##believ" in [header.text for header in every(browser, "tbody th")]


def test_words_and_the_threshold(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    assert [word.text for word in words_of(browser, 0)] == ["unbelievable", "coffee"]
    cells = [cell.text for cell in every(browser, "tbody td")]
    assert cells == ["0.150", "−0.150", "0.250", "0.500"]
    slider = find(browser, "input[type=range]")
    slider.send_keys(Keys.END)
    assert len(every(browser, "td.wm-faint")) == 3
    legend = find(browser, ".wm-legend").text
    for meaning in ("raises it", "tint: what a word adds", "link: one pair", "lowers it; thicker is more", "layer 1: "):
        assert meaning in legend


def long_explanation(words: int = 200):
    """A question of nine words against a passage of so many; the passage's last words were not read."""
    passage = " ".join(f"word{i % 17}" for i in range(words))
    starts = [(match.start(), match.end()) for match in re.finditer(r"\S+", passage)]
    question = "how do I get my money back for this"
    spans = [(match.start(), match.end()) for match in re.finditer(r"\S+", question)]
    matrix = np.random.default_rng(0).standard_normal((9, words)) / 100
    return explanation(
        score=float(matrix.sum()),
        matrix=matrix,
        **{
            f"{name}_{side}": value
            for side, text, offsets in (("a", question, spans), ("b", passage + " unread", starts))
            for name, value in {
                "text": text,
                "tokens": tuple(text[low:high] for low, high in offsets),
                "offsets": tuple(offsets),
                "kinds": ("text",) * len(offsets),
                "effects": np.zeros(len(offsets)),
                "truncated": side == "b",
            }.items()
        },
    )


@contextlib.contextmanager
def narrow(browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_passage_of_200_words_can_be_read(browser, tmp_path):
    open_page(browser, long_explanation(), tmp_path)
    assert len(every(browser, "tbody tr")) == 9
    assert len(every(browser, "thead th")) < 25, "the strongest columns"
    assert "of 200 columns" in find(browser, "caption").text
    find(browser, ".wm-all").click()
    assert len(every(browser, "thead th")) == 200
    assert find(browser, ".wm-unread").text.strip() == "unread"
    assert not every(browser, ".wm-links path"), "no curves across a passage"
    with narrow(browser):
        open_page(browser, long_explanation(), tmp_path)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
        assert len(every(browser, "thead th")) <= 5
        words_of(browser, 1)[40].click()
        assert not every(browser, ".wm-links path")
        shot(browser, "page-long-narrow")


def test_small_numbers_keep_digits_that_say_something(browser, tmp_path):
    why = long_explanation()
    open_page(browser, replace(why, matrix=why.matrix / 50, score=why.score / 50), tmp_path)
    assert re.fullmatch("[+−]0\\.000[1-9]\\d", find(browser, ".wm-summary .wm-number").text)
    assert any(re.fullmatch("−?0\\.000[1-9]\\d", cell.text) for cell in every(browser, "tbody td"))
    page, number, table = (find(browser, css).rect for css in ("body", ".wm-summary .wm-number", ".wm table"))
    assert number["x"] + number["width"] <= page["x"] + page["width"] - 16
    assert table["x"] + table["width"] <= page["x"] + page["width"]


def test_links_are_drawn_where_they_cross_no_words(browser, tmp_path):
    open_page(browser, long_explanation(12), tmp_path)
    until(browser, lambda: every(browser, ".wm-links path"))
    lines = browser.execute_script(
        "const box = document.querySelector('.wm-texts').getBoundingClientRect();"
        "return [...document.querySelectorAll('.wm-text')].map(e => { const r = e.getBoundingClientRect();"
        "return [r.top - box.top, r.bottom - box.top]; })"
    )
    for path in every(browser, ".wm-links path"):
        heights = [float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", path.get_attribute("d"))]
        assert min(heights) > lines[0][0] + 10
        assert max(heights) < lines[1][1] - 10
    with narrow(browser):  # where texts wrap
        open_page(browser, long_explanation(12), tmp_path)
        assert not every(browser, ".wm-links path")
        assert not find(browser, ".wm-link-key").is_displayed(), "what is not drawn needs no legend"


def test_controls_do_not_have_the_colours_of_the_score(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    for element in every(browser, "input, select, button"):
        red, green, blue = map(int, re.findall(r"\d+", element.value_of_css_property("accent-color"))[:3])
        assert red == green == blue, "grey"


def saved(folder: Path, ending: str) -> bytes:
    """What the browser has saved, when it has."""
    deadline = time.monotonic() + 15
    # A browser reserves the name with an empty file before it writes.
    while not (found := [path for path in folder.glob(f"*.{ending}") if path.stat().st_size]):
        assert time.monotonic() < deadline, f"nothing that ends in {ending} was saved"
        time.sleep(0.05)
    return found[0].read_bytes()


def click_on(browser, css: str, text: str) -> None:
    next(button for button in every(browser, css) if button.text == text).click()


@pytest.fixture
def saves(browser, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    return folder


def test_the_page_saves_what_it_shows(browser, tmp_path, saves):
    open_page(browser, explanation(), tmp_path)
    for name in ("PNG", "JSON", "CSV"):
        click_on(browser, ".wm-save button", name)
    picture = saved(saves, "png")
    assert picture.startswith(b"\x89PNG")
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        assert image.width > 1500
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert (217, 95, 2) in colours, "the colour of what raises the score"
    assert Explanation.from_dict(json.loads(saved(saves, "json"))).score == 0.75
    table = saved(saves, "csv").decode("utf-8-sig").splitlines()
    assert table[0] == ",Coffee,!"
    assert float(table[2].split(",")[2]) == 0.5
    assert errors(browser) == []


def test_the_page_by_keyboard_alone(browser, tmp_path):
    open_page(browser, explanation(), tmp_path)
    for _ in range(12):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        if "wm-token" in (browser.switch_to.active_element.get_attribute("class") or ""):
            break
    assert "wm-token" in browser.switch_to.active_element.get_attribute("class")
    webdriver.ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ENTER).perform()
    assert browser.switch_to.active_element.get_attribute("aria-label").startswith("coffee, ")
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "true"
    webdriver.ActionChains(browser).send_keys(Keys.ARROW_DOWN).perform()
    assert browser.switch_to.active_element.get_attribute("aria-label").startswith("!, ")
    webdriver.ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not every(browser, '[aria-pressed="true"]')


def test_a_hostile_text_is_text(browser, tmp_path):
    spans = ((0, 9), (9, 20), (20, 30), (30, len(HOSTILE)))
    open_page(browser, explanation(text_a=HOSTILE, tokens_a=(HOSTILE, "b", "c", "d"), offsets_a=spans), tmp_path)
    assert every(browser, ".wm-text")[0].text == HOSTILE
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
    from PIL import Image

    from whymatch.reading.pictures import thumbnail

    boxes = ((0, 0, 0, 0), *((x, y, x + 50, y + 40) for y in (0, 40) for x in (0, 50)))
    why = explanation(
        matrix=np.arange(20).reshape(4, 5) / 100 - 0.05,
        effects_b=np.zeros(5),
        tokens_b=("[CLS]", "0,0", "0,1", "1,0", "1,1"),
        offsets_b=((0, 0),) * 5,
        kinds_b=("special", *["patch"] * 4),
        boxes_b=boxes,
        image_b=thumbnail(Image.new("RGB", (100, 80), "white")),
        unit_b="patch",
    )
    open_page(browser, why, tmp_path, "picture")
    patches = every(browser, ".wm-picture .wm-token")
    assert len(patches) == 4
    image = find(browser, ".wm-picture img").rect
    assert patches[3].rect["x"] == pytest.approx(image["x"] + image["width"] / 2, abs=2)
    webdriver.ActionChains(browser).move_to_element(patches[3]).perform()
    until(browser, lambda: find(browser, ".wm-summary").text.startswith("“1,1” adds "))
    shot(browser, "page-picture")


# --- the widget, with a model that stands for the notebook's


def test_the_widget_and_its_state_follow_each_other(browser, tmp_path):
    pytest.importorskip("anywidget", reason="the extra widget is not installed")
    view = explanation().widget()
    fields = ("style", "data", "texts", "layer", "level", "pinned", "hovered", "busy", "error")
    state = {name: getattr(view, name) for name in fields} | {"layers": 3}
    data = json.dumps(state).replace("<", "\\u003c")
    script = f"""{str(view._esm).replace("export default", "const widget =")}
    const state = {data}, heard = {{}};
    window.model = {{ state, saved: 0, get: name => state[name], save_changes: () => {{ model.saved += 1; }},
      set: (name, value) => {{ state[name] = value; (heard[`change:${{name}}`] ?? []).forEach(f => f()); }},
      on: (name, f) => {{ (heard[name] ??= []).push(f); }} }};
    widget.render({{ model, el: document.getElementById("el") }});"""
    page = tmp_path / "widget.html"
    page.write_text(f"<meta charset=utf-8><div id=el></div><script type=module>{script}</script>", encoding="utf-8")
    browser.get(page.as_uri())
    inside = find(browser, "#el").shadow_root
    until(browser, lambda: inside.find_elements(By.CSS_SELECTOR, ".wm-token"))
    inside.find_elements(By.CSS_SELECTOR, ".wm-token")[1].click()
    assert browser.execute_script("return [model.state.pinned, model.state.hovered]") == [[0, 1], [0, 1]]
    browser.execute_script("model.set('pinned', [1, 0]); model.set('hovered', [0, 0])")
    summary = inside.find_element(By.CSS_SELECTOR, ".wm-summary")
    assert summary.text.startswith("“unbelievable” adds "), "what Python points at"
    browser.execute_script("model.set('hovered', null)")
    assert summary.text.startswith("“Coffee” adds "), "what is pinned"
    browser.execute_script("model.set('level', 'tokens')")
    assert len(inside.find_elements(By.CSS_SELECTOR, ".wm-text:first-child .wm-token")) == 4
    inside.find_element(By.CSS_SELECTOR, "input[value=words]").click()
    assert browser.execute_script("return model.state.level") == "words"
    inside.find_element(By.CSS_SELECTOR, ".wm-ask input[type=range]").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script("return model.state.layer") == 2
    first = inside.find_element(By.CSS_SELECTOR, ".wm-ask input[type=text]")
    first.send_keys(" now", Keys.ENTER)
    assert browser.execute_script("return model.state.texts[0]") == "unbelievable coffee now"
    shot(browser, "widget")
    assert errors(browser) == []


# --- the site, from disk


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    build = pytest.importorskip("mkdocs.commands.build", reason="mkdocs is not installed").build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(Path(__file__).parents[1] / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_the_site_is_read_and_searched_from_a_folder(browser, site):
    browser.get((site / "gallery/index.html").as_uri())
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.cards img')].map(each => each.naturalWidth)"
    )
    assert len(widths) == 7
    assert min(widths) > 0, "every card has a picture"
    shot(browser, "site-gallery")
    browser.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    until(browser, lambda: find(browser, ".md-search__input").is_displayed())
    find(browser, ".md-search__input").send_keys("ToleranceWarning")
    until(browser, lambda: every(browser, ".md-search-result__link"))
    assert every(browser, ".md-search-result__link")[0].get_attribute("href").startswith((site / "ref").as_uri())
    assert errors(browser) == []


def test_the_site_loads_nothing_from_elsewhere(site):
    loads = re.compile(
        r"""<(?:script|img|iframe|link rel="?(?:stylesheet|icon|preconnect))[^>]+(?:src|href)="?https?:"""
    )
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text(encoding="utf-8")), page.name


# --- the explorer


def ready(browser, address):
    """Open the explorer and wait until it has answered its own example."""
    browser.get(address)
    until(browser, lambda: every(browser, ".wm-score") and not every(browser, "[aria-busy]"))


def write(browser, **texts: str) -> None:
    for name, text in texts.items():
        field = find(browser, f"#{name}")
        field.clear()
        field.send_keys(text)


def done(browser) -> bool:
    return find(browser, "#status").text.startswith("Done") or find(browser, "#error").text != ""


def explain(browser, a: str, b: str) -> None:
    write(browser, a=a, b=b)
    find(browser, "#go").click()
    until(browser, lambda: done(browser))


def choose(browser, mode: str) -> None:
    browser.execute_script(f"document.querySelector('input[value={mode}]').click()")


def test_the_first_screen_has_a_name_an_answer_and_a_legend(browser, address):
    ready(browser, address)
    assert find(browser, "h1").text == "whymatch"
    assert "exact sum over pairs of words" in find(browser, "header p").text
    assert find(browser, ".wm-score").rect["y"] < 400, "without scrolling"
    texts, strongest = find(browser, ".wm-texts").rect, find(browser, ".wm-summary").rect
    assert strongest["x"] > texts["x"] + 200, "the texts have what is strongest in them beside them"
    assert strongest["y"] + strongest["height"] < 800
    assert "#" not in browser.current_url, "the example is not a state"
    assert not find(browser, "#history").is_displayed()
    shot(browser, "explorer-first")
    assert errors(browser) == []


def test_type_explain_and_reopen_the_link(browser, address, saves):
    ready(browser, address)
    explain(browser, "The coffee is not good.", "This is bad coffee.")
    assert len(every(browser, ".panel")) == 1
    score = find(browser, ".wm-score").text
    link = browser.current_url
    assert "coffee" in link.partition("#")[2]
    browser.execute_script("navigator.clipboard.writeText = async text => { window.copied = text; }")
    click_on(browser, ".wm-save button", "Copy link")
    until(browser, lambda: browser.execute_script("return window.copied") == link)
    click_on(browser, ".wm-save button", "HTML")
    page = saves / "page.html"
    page.write_bytes(saved(saves, "html"))
    shot(browser, "explorer")
    browser.get("about:blank")
    browser.get(link)
    until(browser, lambda: every(browser, ".wm-score"))
    assert find(browser, ".wm-score").text == score
    assert find(browser, "#a").get_attribute("value") == "The coffee is not good."
    browser.get(page.as_uri())
    assert find(browser, ".wm-score").text == score, "the saved page stands alone"
    assert errors(browser) == []


def test_a_result_is_marked_when_a_setting_moves_and_ctrl_enter_mends_it(browser, address):
    ready(browser, address)
    assert not find(browser, "#stale").is_displayed()
    assert find(browser, "#layer-shown").text == "2 of 3 ★ recommended"
    find(browser, "#layer").send_keys(Keys.ARROW_LEFT)
    assert find(browser, "#layer-shown").text == "1 of 3"
    assert "layer 2 is recommended" in find(browser, "#layer-note").text
    assert find(browser, "#stale").is_displayed()
    find(browser, "#layer").send_keys(Keys.ARROW_RIGHT)
    assert not find(browser, "#stale").is_displayed(), "the setting is back where it was"
    find(browser, "#a").send_keys(" Nobody drank it.")
    assert find(browser, "#stale").is_displayed()
    find(browser, "#a").send_keys(Keys.CONTROL + Keys.ENTER)
    until(browser, lambda: done(browser))
    assert not find(browser, "#stale").is_displayed()
    assert "Nobody drank it." in every(browser, ".wm-text")[0].text


def test_the_last_result_is_dimmed_and_progress_moves(browser, address, monkeypatch):
    from whymatch import progress

    ready(browser, address)
    begin, end = threading.Event(), threading.Event()
    original = Explainer.explain

    def slow(self, *args, **kwargs):
        progress.report(0.25, "decomposing")
        begin.wait(10)
        progress.report(0.75, "decomposing")
        end.wait(10)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Explainer, "explain", slow)
    find(browser, "#go").click()
    bar = find(browser, "#progress")
    until(browser, lambda: float(bar.get_attribute("value") or 0) == 0.25)
    until(browser, lambda: float(find(browser, "#results").value_of_css_property("opacity")) < 0.5)
    assert find(browser, "#status").text.startswith("Decomposing… 25 %")
    assert find(browser, "#stop").is_displayed()
    begin.set()
    until(browser, lambda: float(bar.get_attribute("value")) == 0.75)
    end.set()
    until(browser, lambda: done(browser))
    until(browser, lambda: find(browser, "#results").value_of_css_property("opacity") == "1")


def test_another_layer_and_another_model_stand_beside_it(browser, address):
    ready(browser, address)
    find(browser, "#compare").click()
    find(browser, "#layer").send_keys(Keys.ARROW_LEFT)
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".panel .wm-score")) == 2)
    assert [chip.text for chip in every(browser, ".chip")] == ["layer 2", "layer 1"]
    legends = {legend.text.split(" raises it")[0] for legend in every(browser, ".wm-legend")}
    assert len(legends) == 1, "one scale for both"
    assert len(every(browser, ".panel")[1].find_elements(By.CSS_SELECTOR, ".change .wm-row")) == 5
    options = every(browser, "#model option")
    assert len(options) == 2
    options[1].click()
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".panel .wm-score")) == 3)
    captions = [panel.find_element(By.CSS_SELECTOR, ".wm-how").text for panel in every(browser, ".panel")]
    assert [re.search(r"layer (\d)", caption)[1] for caption in captions] == ["2", "1", "2"]
    assert len(every(browser, ".chip")) == 6, "model and layer"
    shot(browser, "explorer-compare")


def test_an_example_of_search(browser, address):
    ready(browser, address)
    click_on(browser, "#examples button", "search")
    until(browser, lambda: len(every(browser, ".hit")) == 4)
    assert every(browser, ".hit mark")
    assert len(every(browser, "#results .wm-legend")) == 1, "one scale for all hits"
    find(browser, ".wm-why summary").click()
    against = every(browser, ".wm-why select")[1].find_elements(By.TAG_NAME, "option")
    assert against[-1].text == "what is usual: the mean of 4 documents"
    against[-1].click()
    until(browser, lambda: "← for the mean of 4 documents" in find(browser, ".wm-why").text)
    numbers = [
        float(each.text.replace("−", "-")) for each in every(browser, ".wm-why .wm-row .wm-number:not(.wm-both)")
    ]
    difference = float(find(browser, ".wm-why .wm-score").text.replace("−", "-"))
    assert sum(numbers) == pytest.approx(difference, abs=2e-3 + 5e-4 * len(numbers))
    every(browser, ".hit summary")[0].click()
    until(browser, lambda: every(browser, ".hit .wm-score"))
    shot(browser, "explorer-rank")


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("faq.txt", "bad coffee\n\ngood tea\n", [("", "bad coffee"), ("", "good tea")]),
        (
            "faq.csv",
            'id,text,by\n7,"bad, ""cold"" coffee",me\n8,good tea,you\n',
            [("7", 'bad, "cold" coffee'), ("8", "good tea")],
        ),
        (
            "faq.jsonl",
            '{"id": 7, "title": "T", "text": "bad\\ncoffee"}\n"good tea"\n',
            [("T · 7", "bad coffee"), ("", "good tea")],
        ),
    ],
    ids=["txt", "csv", "jsonl"],
)
def test_documents_are_uploaded(browser, address, tmp_path, name, content, documents):
    ready(browser, address)
    choose(browser, "rank")
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    find(browser, "#open").send_keys(str(path))
    until(browser, lambda: find(browser, "#status").text == f"2 documents from {name}.")
    write(browser, a="bad coffee")
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".hit")) == 2)
    found = [
        (hit.find_element(By.CSS_SELECTOR, "h2").text, hit.find_element(By.CSS_SELECTOR, ".wm-passage").text)
        for hit in every(browser, ".hit")
    ]
    assert {" ".join(text.split()) for _, text in found} == {text for _, text in documents}
    for title, text in documents:
        assert any(shown.endswith(title) and " ".join(body.split()) == text for shown, body in found)


def test_a_broken_file_is_named(browser, address, tmp_path):
    ready(browser, address)
    choose(browser, "rank")
    stray = tmp_path / "stray.csv"
    stray.write_text('id,text\n1,"open\n2,bad coffee\n3,"open again\n4,good tea\n5,\n6,a,b\n')
    find(browser, "#open").send_keys(str(stray))
    until(browser, lambda: "2 documents from stray.csv. Left out" in find(browser, "#status").text)
    assert "stray.csv: lines 2, 4, 6, 7" in find(browser, "#status").text
    assert [json.loads(line)["text"] for line in find(browser, "#b").get_property("value").splitlines()] == [
        "bad coffee",
        "good tea",
    ]
    (tmp_path / "plain.csv").write_text("bad coffee\ngood tea\n")  # without a name of the column
    find(browser, "#open").send_keys(str(tmp_path / "plain.csv"))
    until(browser, lambda: find(browser, "#status").text == "2 documents from plain.csv.")
    path = tmp_path / "faq.jsonl"
    path.write_text('{"text": "bad coffee"}\n{"text": \n')
    find(browser, "#open").send_keys(str(path))
    until(browser, lambda: 'faq.jsonl: line 2 is not JSON: {"text":' in find(browser, "#error").text)


def test_contrast_highlight_and_sentences(browser, address):
    ready(browser, address)
    click_on(browser, "#examples button", "why not the other")
    until(browser, lambda: every(browser, ".wm-ends"))
    assert "Each bar is what the first gives a word of the query" in find(browser, "#results").text
    shown = [row.text.split("\n")[0] for row in every(browser, ".wm-bars .wm-row")[1:7]]
    assert shown == ["how", "do", "I", "cancel", "my", "ticket"]
    choose(browser, "highlight")
    write(browser, a="can I bring my dog", b="Bad coffee for two. Good tea. The dogs run in the field.")
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".wm-passage mark")) > 10)
    find(browser, "#unit").find_elements(By.TAG_NAME, "option")[1].click()
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".wm-passage mark")) == 3)
    choose(browser, "pair")
    find(browser, "#go").click()
    until(browser, lambda: len(every(browser, ".wm-text")) == 2)
    assert [word.text for word in words_of(browser, 0)][:5] == ["can", "I", "bring", "my", "dog"]
    assert [part.text for part in words_of(browser, 1)][:2] == ["Bad coffee for two.", "Good tea."]


def test_history_is_kept_in_the_browser_and_forgotten(browser, address):
    ready(browser, address)
    explain(browser, "bad coffee", "good tea")
    explain(browser, "two dogs", "the field")
    browser.get("about:blank")
    ready(browser, address)
    find(browser, "#history summary").click()
    assert [link.text for link in every(browser, "#history a")][:2] == ["two dogs / the field", "bad coffee / good tea"]
    every(browser, "#history a")[1].click()
    until(browser, lambda: every(browser, ".wm-text")[0].text.startswith("bad coffee"))
    find(browser, "#forget").click()
    assert browser.execute_script("return localStorage.length") == 0
    assert not find(browser, "#history").is_displayed()


def test_the_description_of_the_api_names_this_server_and_its_answers(browser, address):
    browser.get(address + "docs/")
    until(browser, lambda: len(every(browser, "#paths h2")) > 5)
    assert f"curl -s {address}api/explain" in find(browser, "#curl").text
    text = find(browser, "#paths").text
    for line in ("Answer: ExplanationAnswer", "score: number   What the model itself gives", "hits: [HitAnswer, …]"):
        assert line in text
    assert errors(browser) == []


def test_an_error_is_shown(browser, address):
    ready(browser, address)
    browser.execute_script("document.getElementById('a').value = 'x'.repeat(501)")
    find(browser, "#go").click()
    until(browser, lambda: "has 501 characters; at most 500 are accepted" in find(browser, "#error").text)


def test_the_explorer_by_keyboard_alone(browser, address):
    ready(browser, address)
    keys = webdriver.ActionChains(browser).send_keys(Keys.TAB)
    for text in ("bad coffee", "the coffee"):
        keys.send_keys(Keys.TAB).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys(text)
    keys.send_keys(Keys.TAB, Keys.ENTER).perform()
    until(browser, lambda: done(browser))
    assert find(browser, "#a").get_attribute("value") == "bad coffee"
    assert every(browser, ".wm-text")[1].text.startswith("the coffee")


def test_hits_are_compared_on_a_narrow_screen(browser, tmp_path, load):
    ranking = Explainer(load(), layer=2).rank("bad coffee", ["The coffee is not good.", "Two dogs run"] * 6)
    path = tmp_path / "ranking.html"
    path.write_text(ranking.to_html(), encoding="utf-8")
    with narrow(browser):
        browser.get(path.as_uri())
        find(browser, ".wm-why summary").click()
        every(browser, ".wm-why select")[1].find_elements(By.TAG_NAME, "option")[-1].click()
        box = find(browser, ".wm-why").rect
        for part in every(browser, ".wm-why select, .wm-why .wm-key, .wm-why .wm-bars"):
            assert part.rect["x"] + part.rect["width"] <= box["x"] + box["width"]
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380


def test_a_narrow_screen_needs_no_sideways_scrolling(browser, address):
    with narrow(browser):
        ready(browser, address)
        explain(browser, "The coffee is not good, and nobody drank it in the kitchen.", "This is bad coffee.")
        until(browser, lambda: every(browser, ".wm-text"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
        assert not every(browser, ".wm-links path")
        shot(browser, "explorer-narrow")


def test_a_small_screen_begins_with_an_answer(browser, address):
    with narrow(browser):
        ready(browser, address)
        until(browser, lambda: every(browser, ".wm-links path"))
        second = every(browser, ".wm-text")[1].rect
        # The name of the model, here the long path of a folder, takes lines that are not counted.
        names = sum(find(browser, name).rect["height"] - 20 for name in ("#settings summary", ".wm-how"))
        assert second["y"] + second["height"] - names < 800, "both texts and their links without scrolling"
        panel = find(browser, ".panel").rect
        for part in every(browser, ".wm-legend span, .wm-controls label, .wm-save button"):
            assert part.rect["x"] + part.rect["width"] < panel["x"] + panel["width"], part.text
        settings = find(browser, "#settings summary")
        assert settings.text.endswith("layer 2 of 3 ★ recommended")
        assert not find(browser, "#layer").is_displayed()
        settings.click()
        assert find(browser, "#layer").is_displayed()
        shot(browser, "explorer-narrow-first")


def test_a_hostile_text_is_text_in_the_explorer_too(browser, address):
    ready(browser, address)
    explain(browser, HOSTILE, "coffee")
    assert every(browser, ".wm-token")
    assert not every(browser, "#results img")
    assert browser.title == "whymatch"


def test_a_closed_tab_stops_its_work(browser, address, monkeypatch):
    from whymatch import progress

    steps: list[int] = []
    ended = threading.Event()

    def slow(self, *args, **kwargs):  # noqa: ARG001
        try:
            for step in range(3000):
                progress.report(step / 3000)
                steps.append(step)
                time.sleep(0.01)
        finally:
            ended.set()

    home = browser.current_window_handle
    browser.switch_to.new_window("tab")
    ready(browser, address)
    monkeypatch.setattr(Explainer, "explain", slow)
    find(browser, "#go").click()
    until(browser, lambda: steps)
    browser.close()
    browser.switch_to.window(home)
    assert ended.wait(10)
    assert len(steps) < 2500
