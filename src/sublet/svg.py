"""The few shapes that plots are made of, as SVG text."""

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape


def document(parts: Iterable[str], width: float, height: float) -> str:
    """A whole SVG file, on a white background."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    fill: str = "#111",
    size: int = 12,
    weight: str = "normal",
) -> str:
    """One line of text; `y` is its base line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}" font-weight="{weight}">{escape(words)}</text>'
    )


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    """A faint straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e2e2e2"/>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """The border of a plot."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" '
        'stroke="#bbb"/>'
    )


def curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    """A line through these points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'
