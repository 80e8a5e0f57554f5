"""Every picture of the pages can be read: by eye, on light and dark, without colours, and by a screen reader."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs").rglob("*.svg"))
DIAGRAM = ROOT / "docs" / "images" / "choose.svg"  # written by hand; all other pictures are charts
SVG = "{http://www.w3.org/2000/svg}"
CHARACTER = 0.62  # width of a character of a wide sans-serif font, as a part of its size
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
RULE = re.compile(r"\.(\w+)\{([^}]*)\}")
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*)\}\s*\Z", re.DOTALL)
MARK = re.compile(r"translate\(([\d.]+) ([\d.]+)\)")

Box = tuple[float, float, float, float]

every_picture = pytest.mark.parametrize("path", PICTURES, ids=[path.stem for path in PICTURES])
CHARTS = [path for path in PICTURES if path != DIAGRAM]
every_chart = pytest.mark.parametrize("path", CHARTS, ids=[path.stem for path in CHARTS])


def root_of(path: Path) -> Element:
    return ElementTree.parse(path).getroot()  # noqa: S314 - a file of this repository


def texts(root: Element) -> Iterator[Element]:
    return root.iter(f"{SVG}text")


def box(text: Element) -> Box:
    """Left, top, right and bottom of a text, in pixels."""
    size = float(text.get("font-size", ""))
    width = CHARACTER * size * len(text.text or "")
    before = {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    left, base = float(text.get("x", "")) - before, float(text.get("y", ""))
    return left, base - 0.8 * size, left + width, base + 0.2 * size


def touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def axes(root: Element) -> list[tuple[str, str, list[float], list[str]]]:
    """The letter, the kind of scale, the values of the ticks and their labels, of each axis."""
    found = []
    for group in root.iter(f"{SVG}g"):
        ticks = [text for text in texts(group) if text.get("data-tick")]
        values = [float(tick.get("data-tick", "")) for tick in ticks]
        labels = [tick.text or "" for tick in ticks]
        found.append((group.get("data-axis", ""), group.get("data-scale", ""), values, labels))
    return found


def is_round(value: float) -> bool:
    """Whether a value is 1, 2 or 5 times a power of ten."""
    digit = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return any(math.isclose(digit, one) for one in (1, 2, 5))


def said(label: str) -> float:
    """The number in the label of a tick, with its unit applied: "20 ms" is 0.02."""
    number, _, unit = label.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


def colours(rules: str) -> dict[str, str]:
    """The colour of each CSS class in `rules`."""
    return {name: found[0] for name, rule in RULE.findall(rules) if (found := re.findall(r"#[0-9a-f]{6}", rule))}


def contrast(one: str, other: str) -> float:
    """The ratio of the luminances of two colours, as the accessibility guidelines of the web (WCAG 2) define it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_there_are_pictures_and_each_is_on_a_page() -> None:
    """Each picture is shown by a page, with a text for those who do not see it."""
    shown = {
        (page.parent / target).resolve(): text
        for page in (ROOT / "docs").rglob("*.md")
        for text, target in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text("utf-8"))
    }
    assert len(PICTURES) >= 12
    assert set(shown) == {path.resolve() for path in PICTURES}
    assert all(len(text) > 20 for text in shown.values())


@every_picture
def test_a_screen_reader_finds_title_and_description(path: Path) -> None:
    """The picture is an image whose title and description are not empty, and the title is also written in it."""
    root = root_of(path)
    assert root.get("role") == "img"
    named = {one.get("id"): one.text or "" for one in root if one.tag in (f"{SVG}title", f"{SVG}desc")}
    assert root.get("aria-labelledby", "").split() == list(named)
    title, description = named.values()
    assert title in {text.text for text in texts(root)}
    assert len(description) > 40


@every_picture
def test_light_and_dark_have_colours_with_enough_contrast(path: Path) -> None:
    """Both schemes set the same CSS classes. Contrast to the background: texts at least 4.5, lines and marks 3."""
    style = root_of(path).findtext(f"{SVG}style", "")
    dark = DARK.search(style)
    assert dark is not None
    schemes = [colours(style[: dark.start()]), colours(dark[1])]
    assert set(schemes[0]) == set(schemes[1])
    for scheme in schemes:
        background = scheme.pop("bg")
        assert [name for name in ("ink", "soft") if contrast(scheme[name], background) < 4.5] == []
        series = [name for name in scheme if re.fullmatch(r"[ml]\d", name)]
        assert len(series) == 16
        assert [name for name in series if contrast(scheme[name], background) < 3] == []
    used = {name for one in root_of(path).iter() for name in (one.get("class") or "").split()}
    assert used <= set(schemes[0]) | {"bg", "line", "hollow"}


@every_chart
def test_ticks_are_round_and_log_axes_say_so(path: Path) -> None:
    """The ticks of a logarithmic axis are 1, 2 and 5 times powers of ten.

    A linear axis begins at zero, and its equal steps are 1, 2 or 5 times a power of ten. Each label shows the value of
    its tick. The name of an axis ends with "log scale" if the axis is logarithmic, and only then.
    """
    found = axes(root_of(path))
    assert {letter for letter, *_ in found} <= {"x", "y"}
    assert found
    for _, scale, values, labels in found:
        assert len(values) >= 2
        assert [said(label) for label in labels] == pytest.approx(values)
        if scale == "log":
            assert [value for value in values if not is_round(value)] == []
        else:
            steps = {round(after - before, 9) for before, after in pairwise(values)}
            assert values[0] == 0
            assert len(steps) == 1
            assert is_round(steps.pop())
    logarithmic = {letter for letter, scale, *_ in found if scale == "log"}
    assert sum((text.text or "").endswith("log scale") for text in texts(root_of(path))) == len(logarithmic)


@every_chart
def test_bars_begin_at_zero(path: Path) -> None:
    """A picture with bars has a linear axis, and each bar begins at the zero of the axis."""
    root = root_of(path)
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") != "bg"]
    if bars:
        assert [scale for _, scale, *_ in axes(root)] == ["linear"]
        (zero,) = (float(text.get("x", "")) for text in texts(root) if text.get("data-tick") == "0")
        assert {float(bar.get("x", "")) for bar in bars} == {zero}


@every_picture
def test_nothing_is_cut_and_no_text_lies_on_another(path: Path) -> None:
    """Each text and each mark is inside of the picture, and no two texts touch."""
    root = root_of(path)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    boxes = {(text.text or "", box(text)) for text in texts(root)}
    assert [
        text for text, (left, top, right, low) in boxes if min(left, top) < 0 or right > width or low > height
    ] == []
    assert [(one[0], other[0]) for one, other in combinations(boxes, 2) if touch(one[1], other[1])] == []
    marks = [MARK.search(one.get("transform", "")) for one in root.iter(f"{SVG}path") if one.get("transform")]
    bars = [(float(one.get("x", "")) + float(one.get("width", ""))) for one in root.iter(f"{SVG}rect") if one.get("x")]
    assert len(marks) + len(bars) >= 3
    assert all(mark is not None for mark in marks)
    assert all(8 < float(mark[1]) < width - 8 and 8 < float(mark[2]) < height - 8 for mark in marks if mark)
    assert all(0 < bar < width for bar in bars)


@every_chart
def test_a_series_is_known_without_its_colour(path: Path) -> None:
    """No two series have marks of the same shape. Bars are not checked, because their names are beside them."""
    shapes: dict[str, set[str]] = {}
    for one in root_of(path).iter(f"{SVG}path"):
        if one.get("transform"):
            number = (one.get("class") or "")[-1]
            shapes.setdefault(number, set()).add(one.get("d", ""))
    assert all(len(outlines) == 1 for outlines in shapes.values())
    assert len({outline for outlines in shapes.values() for outline in outlines}) == len(shapes)


def test_the_diagram_leads_to_the_pages_of_the_table_below_it() -> None:
    """The diagram names the pages of "Choose what you need" and no others, and only extras that exist. No text crosses
    a box.
    """
    _, _, below = (ROOT / "docs" / "index.md").read_text("utf-8").partition("## Choose what you need\n")
    table, _, _ = below.partition("\n## ")
    linked = {(target, label.lower()) for label, target in re.findall(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)", table)}
    drawn = list(texts(root_of(DIAGRAM)))
    assert {(text.get("data-page"), (text.text or "").lower()) for text in drawn if text.get("data-page")} == linked
    assert len(linked) >= 10
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needs = [need for text in drawn for need in re.findall(r"^extras? ([^,]+)", text.text or "")]
    named = {word for need in needs for word in need.split()} - {"and", "or"}
    assert len(named) >= 5
    assert named <= project["optional-dependencies"].keys()
    for rect in root_of(DIAGRAM).iter(f"{SVG}rect"):
        if rect.get("class") != "bg":
            left, top, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
            outer = (left, top, left + width, top + height)
            touching = [box(text) for text in drawn if touch(box(text), outer)]
            assert touching
            assert all(left < one[0] and one[2] < outer[2] and top < one[1] and one[3] < outer[3] for one in touching)


def test_the_measures_of_this_module_find_mistakes() -> None:
    """The helpers of this module recognise values that are not round, texts that touch, and weak contrasts."""
    assert [is_round(value) for value in (1, 0.02, 5_000, 3, 25, 1e-6)] == [True, True, True, False, False, True]
    assert touch((0, 0, 10, 10), (9, 9, 20, 20))
    assert not touch((0, 0, 10, 10), (11, 0, 20, 10))
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#ffff00", "#ffffff") < 3
    assert said("20 ms") == pytest.approx(0.02)
