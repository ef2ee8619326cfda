"""A case's picture as SVG: lines over steps or sizes, or bars for each state."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any
from xml.etree import ElementTree as ET

from .report import Picture

_OURS = ("#1f6feb", "#0b3d91", "#2da44e", "#1b7c83")
_OTHERS = ("#d1442f", "#8c2f1f", "#bf8700", "#8250df", "#57606a", "#c23b80", "#6b8e23", "#a0522d", "#d4a017", "#24292f")
# More labels than this below an axis run into one another: then the bars lie.
_STANDING = 12


def available() -> bool:
    """Whether pygal is installed."""
    return importlib.util.find_spec("pygal") is not None


def svg(picture: Picture) -> bytes:
    """The picture; no script in it, nothing that is fetched, and the same bytes for the same figures."""
    pygal, style = importlib.import_module("pygal"), importlib.import_module("pygal.style")
    options = {
        "style": style.Style(
            background="white", plot_background="white", foreground="#57606a", foreground_strong="#24292f", foreground_subtle="#d0d7de",
            colors=_colours(list(picture.lines)), font_family="system-ui, 'DejaVu Sans', Arial, sans-serif", title_font_size=15,
            label_font_size=12, major_label_font_size=12, legend_font_size=13, guide_stroke_color="#d8dee4", major_guide_stroke_color="#d8dee4",
        ),
        "title": picture.title, "width": 1000, "height": 480, "explicit_size": True, "margin": 18, "truncate_legend": -1, "show_legend": True,
    }  # fmt: skip
    chart = _bars(pygal, picture, picture.labels, options) if picture.labels is not None else _lines(pygal, picture, options)
    chart.uuid = "bench"
    root: Any = chart.render_tree()
    for parent in root.iter():
        for child in [child for child in parent if child.tag == ET.Comment or str(child.tag).endswith("script")]:
            parent.remove(child)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _colours(names: list[str]) -> tuple[str, ...]:
    """Ours in blue and green, the others in what is left."""
    ours, others = (name for name in _OURS * len(names)), (name for name in _OTHERS * len(names))
    return tuple(next(ours) if "fastckpt" in name else next(others) for name in names)


def _bars(pygal: Any, picture: Picture, labels: list[str], options: dict[str, Any]) -> Any:
    lying = len(labels) > _STANDING
    if lying:
        options = {**options, "height": 120 + 22 * len(labels)}
        labels = [*reversed(labels)]
    kind = pygal.HorizontalBar if lying else pygal.Bar
    chart = kind(**options, x_title=picture.y if lying else picture.x, y_title=picture.x if lying else picture.y, truncate_label=-1)
    chart.x_labels = labels
    values = [y for points in picture.lines.values() for _, y in points if y > 0]
    if picture.logarithmic and values:
        chart.logarithmic = True
        # From a power of ten on, or the least bar would have no height.
        chart.zero = 10.0 ** math.floor(math.log10(min(values) * 0.99))
        chart.range = (chart.zero, max(values) * 1.1)
    chart.value_formatter = lambda value: f"{value:.6g}"
    for name, points in picture.lines.items():
        found = dict(points)
        own = [found.get(float(at)) for at in range(len(labels))]
        chart.add(name, own[::-1] if lying else own)
    return chart


def _lines(pygal: Any, picture: Picture, options: dict[str, Any]) -> Any:
    places = sorted({x for points in picture.lines.values() for x, _ in points})
    # A few sizes that span a hundredfold stand at their logarithms. pygal would draw both axes so, or none.
    wide = len(places) < 10 and places[:1] > [0.0] and places[-1] >= 100 * places[0]
    chart = pygal.XY(
        **options, x_title=picture.x, y_title=picture.y, show_dots=len(places) < 20, dots_size=3, stroke_style={"width": 1.6}, show_x_guides=True
    )
    # Both logarithms begin at 0, for pygal draws an axis there.
    least = math.log10(places[0]) if wide else 0.0
    if wide:
        chart.x_labels = [{"value": math.log10(x) - least, "label": f"{x:g}"} for x in places]
    values = [y for points in picture.lines.values() for _, y in points if y > 0]
    logarithmic = picture.logarithmic and bool(values)
    low = math.floor(math.log10(min(values))) if logarithmic else 0
    if logarithmic:
        high = math.ceil(math.log10(max(values) * 1.01))
        ticks = [digit * 10.0**power for power in range(low, high) for digit in (1, 2, 5)] + [10.0**high]
        chart.y_labels = [{"value": math.log10(tick) - low, "label": f"{tick:g}"} for tick in ticks]
        chart.range = (0, high - low)
    chart.value_formatter = lambda value: f"{10 ** (value + low) if logarithmic else value:.3g}"
    for name, points in picture.lines.items():
        drawn = [(math.log10(x) - least if wide else x, math.log10(y) - low if logarithmic else y) for x, y in points if y > 0 or not logarithmic]
        chart.add(name, drawn)
    return chart
