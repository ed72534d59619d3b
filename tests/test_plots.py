"""Pictures: one notation an axis, labels that do not touch, no line under another, nothing below the floor."""

import itertools

import pytest

from shoal import Interval, plots
from shoal.plots import Line, Panel

matplotlib = pytest.importorskip("matplotlib")


def line(label, *y, x=None, **more):
    return Line(label=label, x=list(range(1, len(y) + 1)) if x is None else x, upper=y, **more)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw, and give back the figure that was saved."""
    figures = []
    from matplotlib.figure import Figure

    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])

    def draw(*panels, **more):
        path = plots.draw_panels(panels, tmp_path / "a.png", **more)
        assert path.stat().st_size > 5000
        return figures[-1]

    return draw


def panel(*lines, **more):
    return Panel(**{"lines": lines, "title": "t", "xlabel": "x", "ylabel": "y", **more})


@pytest.mark.parametrize(
    ("low", "high", "powers"), [(1e-3, 10.0, False), (1e-9, 1.0, True), (1e-4, 1e6, False), (0.5, 1e9, True)]
)
def test_the_ticks_of_an_axis_are_in_one_notation(drawn, low, high, powers):
    figure = drawn(panel(line("a", low, high)))
    texts = [t.get_text() for t in figure.axes[0].get_yticklabels(which="both") if t.get_text()]
    assert len(texts) >= 3
    assert all(("^" in text) is powers for text in texts)
    assert not any("e-" in text or "e+" in text for text in texts)


def test_numbers_of_ticks():
    assert [plots.tick(v, powers=False) for v in (0.0001, 0.5, 1.0, 60_000.0)] == ["0.0001", "0.5", "1", "60,000"]
    assert [plots.tick(v, powers=True) for v in (1e-12, 1.0, 1000.0, 2e-5)] == [
        "$10^{-12}$",
        "$10^{0}$",
        "$10^{3}$",
        r"$2\times10^{-5}$",
    ]
    assert plots.plain(-0.25) == "−0.25"


def test_lines_are_named_at_their_ends_apart_from_each_other(drawn):
    figure = drawn(
        panel(line("one", 1.0, 2.0), line("two", 1.0, 2.2), line("three", 1.0, 2.1), line("far", 1.0, 900.0))
    )
    from matplotlib.text import Text

    figure.canvas.draw()
    names = figure.axes[0].texts
    assert {n.get_text() for n in names} == {"one", "two", "three", "far"}
    boxes = sorted((Text.get_window_extent(n) for n in names), key=lambda box: box.y0)
    assert all(a.y1 <= b.y0 + 1.0 for a, b in itertools.pairwise(boxes))
    assert figure.axes[0].get_legend() is None
    # Lines that end elsewhere get a legend.
    figure = drawn(panel(line("one", 1.0, 2.0), line("two", 1.0, 2.0, 3.0)))
    assert figure.axes[0].get_legend() is not None


def test_a_line_is_not_drawn_under_another(drawn):
    figure = drawn(panel(line("one", 1.0, 1000.0), line("two", 1.001, 1001.0), line("three", 1.5, 1500.0)))
    assert [drawn.get_label() for drawn in figure.axes[0].lines] == ["one\n≈ two", "three"]


def test_nothing_is_drawn_below_the_floor():
    deep = line("a", 1e-3, 1e-9, 1e-30, lower=[1e-4, 1e-20, 0.0])
    (kept,) = plots._above(panel(deep, line("b", 1e-40, 1e-50), floor=1e-15))
    assert (kept.x, kept.upper, kept.lower) == ([1, 2], [1e-3, 1e-9], [1e-4, 1e-15])


def test_a_band_is_explained_where_there_is_one(drawn):
    wide, thin = Interval(lower=1.0, upper=2.0), Interval(lower=2.0, upper=2.001)
    figure = drawn(panel(plots.band("a", [1, 2], [wide, wide])), note="n users")
    assert "Shaded: the truth lies in it" in figure.get_supxlabel()
    assert figure.get_supxlabel().startswith("n users")
    assert drawn(panel(plots.band("a", [1, 2], [thin, thin]))).get_supxlabel() == ""


def test_labels_move_no_further_than_they_must():
    assert plots._apart([0.1, 0.9], [0.1, 0.1]) == [0.1, 0.9]
    places = plots._apart([0.5, 0.5, 0.52], [0.1, 0.1, 0.1])
    assert all(b - a >= 0.0999 for a, b in itertools.pairwise(places))
    assert sum(places) == pytest.approx(1.52)
