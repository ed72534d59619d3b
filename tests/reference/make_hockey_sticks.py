"""High-precision hockey sticks of the mean ratio; writes hockey_sticks.json beside this file.

Run by hand (`python tests/make_references.py`, some minutes). Nothing of the package is used:
mpmath with 50 digits, and for K = n e^eps (after undoing the weight) the inverse Laplace transform

    E[(K - X)+] = 1/(2 pi i) int e^(tK) L(t)^n / t^2 dt,   L(t) = E[e^(-tV)],   X = V_1 + ... + V_n,
    E[(X - K)+] = E[(K - X)+] - (K - n),

on a vertical line (trapezoidal rule) or on Talbot's contour where the tail is heavy. L itself is a
trapezoidal sum in z on a line shifted into the complex plane, so that e^(-tW) decays. Two users are
done in another way, by quadrature over the first ratio of the closed form for the second. Each value
is computed twice, with different steps and contours, and the difference is stored as its error;
values that differ by more than 1e-9 of themselves, or are below 1e-16, are left out.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import mpmath as mp

mp.mp.dps = 50


def centred_laplace(t: Any, s: Any, rate: Any, fine: Any) -> Any:
    """E[e^(-t(V - 1))].

    The integrand is analytic and decays within s pi/4 of the shifted line, so the rule's error is
    about exp(-2 pi (s pi/4) / step), below 1e-33 for the step taken.
    """
    step = fine * min(mp.mpf("0.3"), s / 16)
    angle = mp.arg(t)
    excess = mp.sign(angle) * max(mp.mpf(0), abs(angle) - mp.pi / 4)
    shift = -s * excess if s <= 6 else mp.mpf(0)
    reach = 17 + abs(shift)
    total = mp.mpf(0)
    for k in range(-int(reach / step), int(reach / step) + 1):
        z = mp.mpc(k * step, shift)
        exponent = -t * mp.exp(z / s - 1 / (2 * s * s)) - z * z / 2
        if exponent.real > -150:
            total += mp.exp(exponent)
    return rate * mp.exp(t) * total * step / mp.sqrt(2 * mp.pi) + (1 - rate)


def vertical(n: int, s: Any, rate: Any, gaps: list[Any], shift: Any, fine: Any) -> list[Any]:
    """E[(gap - (X - n))+] less that of the atom at X = n, for every gap = K - n."""
    deviation = mp.sqrt(mp.exp(1 / s**2) - 1) * mp.sqrt(max(mp.mpf(1), n * rate))
    # Aliases lie 2 pi / step away: above damped by e^(-c distance), below beyond the reach of X.
    c, step = shift / deviation, mp.mpf("0.1") * fine / deviation
    atom = (1 - rate) ** n
    totals = [mp.mpf(0)] * len(gaps)
    k = 0
    while True:
        t = mp.mpc(c, k * step)
        core = (centred_laplace(t, s, rate, fine) ** n - atom) / t**2
        terms = [mp.exp(t * gap) * core for gap in gaps]
        totals = [total + term.real * (1 if k else mp.mpf("0.5")) for total, term in zip(totals, terms, strict=True)]
        if max(abs(term) for term in terms) * deviation < mp.mpf(10) ** -32 * deviation**2 or k > 4000:
            break
        k += 1
    return [total * step / mp.pi for total in totals]


def talbot(n: int, s: Any, rate: Any, strike: Any, centre: int, nodes: int) -> Any:
    """E[(strike - (X - centre))+] less that of the atom, by Talbot's contour (Weideman's constants).

    Centred (centre = n) for a strike above the mean, plain (centre = 0) below it.
    """
    total = mp.mpf(0)
    atom = (1 - rate) ** n
    a, b, c, d = (mp.mpf(x) for x in ("0.5017", "0.6407", "0.6122", "0.2645"))
    for k in range(nodes):
        theta = (2 * k + 1) * mp.pi / (2 * nodes)
        t = 2 * nodes / strike * (a * theta * mp.cot(b * theta) - c + mp.mpc(0, d) * theta)
        derivative = a * mp.cot(b * theta) - a * b * theta / mp.sin(b * theta) ** 2 + mp.mpc(0, d)
        core = (centred_laplace(t, s, rate, mp.mpf(24) / nodes) ** n - atom) / t**2
        total += (mp.exp(t * (strike + centre - n)) * core * derivative * 2 * nodes / strike).imag
    return total / nodes


def call_two(s: Any, rate: Any, strike: Any, cuts: int) -> Any:
    """E[(V_1 + V_2 - strike)+], over the first ratio, with the second in closed form."""

    def call(k: Any) -> Any:
        if k <= 0:
            return 1 - k
        z = s * (mp.log(k) + 1 / (2 * s * s))
        whole = mp.ncdf(1 / s - z) - k * mp.ncdf(-z)
        return rate * whole + (1 - rate) * max(1 - k, mp.mpf(0))

    knots = sorted(
        {mp.mpf(-16), mp.mpf(16), *[s * (mp.log(x) + 1 / (2 * s * s)) for x in (strike, strike - 1) if x > 0]}
    )
    pieces = [knots[0]]
    for knot in knots[1:]:
        pieces += mp.linspace(pieces[-1], knot, cuts)[1:]
    first = mp.quad(lambda z: mp.npdf(z) * call(strike - mp.exp(z / s - 1 / (2 * s * s))), pieces)
    return rate * first + (1 - rate) * call(strike - 1)


def puts(n: int, s: float, rate: float, gaps: list[Any]) -> list[list[Any]]:
    """E[(n + gap - X)+] less that of the atom at X = n, twice, each by the contour that suits it."""
    ms, mr = mp.mpf(s), mp.mpf(rate)
    found: list[list[Any]] = [[] for _ in gaps]
    rest = []
    for place, gap in enumerate(gaps):
        if s < 1.5 and gap > 5 * n:
            found[place] = [talbot(n, ms, mr, gap, n, m) for m in (20, 24)]
        elif rate == 1 and ((n <= 10 and s < 1.5) or (n <= 1000 and s < 0.4)):
            found[place] = [talbot(n, ms, mr, n + gap, 0, m) for m in (20, 24)]
        else:
            rest.append(place)
    if rest:
        chosen = [gaps[place] for place in rest]
        lines = [vertical(n, ms, mr, chosen, mp.mpf(c), mp.mpf(fine)) for c, fine in ((3, 1), (2, "0.8"))]
        for place, pair in zip(rest, zip(*lines, strict=True), strict=True):
            found[place] = list(pair)
    return found


def points(n: int, s: float, rate: float, weight: float, epsilons: list[float]) -> list[dict[str, Any]]:
    ms, mr, mw = mp.mpf(s), mp.mpf(rate), mp.mpf(weight)
    ups = [n * mp.expm1(mp.mpf(e)) / mw for e in epsilons]
    downs = [n * mp.expm1(-mp.mpf(e)) / mw for e in epsilons]
    if n == 2:
        forward = [[call_two(ms, mr, n + u, cuts) for cuts in (9, 12)] for u in ups]
        reverse = [[call_two(ms, mr, n + d, cuts) + d for cuts in (9, 12)] for d in downs]
    else:
        atom = (1 - mr) ** n
        values = puts(n, s, rate, ups + downs)
        forward = [[value - u * (1 - atom) for value in pair] for u, pair in zip(ups, values, strict=False)]
        reverse = values[len(ups) :]
    rows = []
    for e, f, r in zip(epsilons, forward, reverse, strict=True):
        for name, pair, factor in (("forward", f, mw / n), ("reverse", r, mw / n * mp.exp(mp.mpf(e)))):
            delta, again = (value * factor for value in pair)
            if delta > 1e-16 and abs(delta - again) < 1e-9 * delta:  # elsewhere the contours do not suit
                rows.append(
                    dict(
                        users=n,
                        scale=s,
                        rate=rate,
                        weight=weight,
                        epsilon=e,
                        direction=name,
                        delta=float(delta),
                        error=float(abs(delta - again)),
                    )
                )
    return rows


def cases() -> list[tuple[int, float, float, float, list[float]]]:
    """(users, scale, rate, weight, epsilons): light tails by deviations of S, heavy ones by hand."""
    found: list[tuple[int, float, float, float, list[float]]] = []
    for n, s, rate, weight in [
        (10, 5.0, 1.0, 1.0),
        (10, 50.0, 1.0, 1.0),
        (100, 2.0, 1.0, 1.0),
        (1000, 2.0, 1.0, 1.0),
        (1000, 5.0, 1.0, 0.1),
        (60_000, 9.48, 1.0, 1.0),
        (10**7, 5.0, 1.0, 1.0),
        (10**8, 2.0, 1.0, 1.0),
        (10**8, 1000.0, 1.0, 1.0),
        (60_000, 5.0, 0.1, 1.0),
        (1000, 5.0, 0.01, 1.0),
        (10**7, 50.0, 0.001, 1.0),
        (6000, 2.0, 0.5, 0.01),
    ]:
        deviation = weight * float(mp.sqrt(rate * mp.expm1(mp.mpf(s) ** -2) / n))
        found.append((n, s, rate, weight, [z * deviation for z in (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 5.8)]))
    for s in (0.3, 0.5, 1.0, 2.0):
        found.append((2, s, 1.0, 1.0, [0.2, 1.0, 3.0, 1.0 / s**2]))
        found.append((2, s, 0.1, 1.0, [0.2, 1.0, 3.0]))
    found += [
        (10, 0.3, 1.0, 1.0, [1.0, 5.0, 15.0]),
        (1000, 0.3, 1.0, 1.0, [0.5, 3.0, 13.87]),
        (10**7, 0.3, 1.0, 1.0, [0.1, 5.0, 12.3]),
        (10, 0.5, 1.0, 1.0, [0.5, 3.0, 8.0]),
        (1000, 0.5, 1.0, 1.0, [0.2, 1.0, 4.1]),
        (10**5, 0.5, 1.0, 1.0, [0.05, 0.3, 2.0]),
        (10, 1.0, 1.0, 1.0, [0.3, 1.0, 2.0]),
        (1000, 1.0, 1.0, 1.0, [0.02, 0.1, 0.17]),
        (10**6, 1.0, 1.0, 1.0, [0.001, 0.005]),
        (1000, 0.5, 0.1, 1.0, [0.1, 0.5, 2.0]),
        (1000, 1.0, 0.01, 1.0, [0.01, 0.05, 0.2]),
        (50, 1.0, 0.5, 0.5, [0.1, 0.4, 0.9]),
    ]
    return found


def main() -> None:
    rows: list[dict[str, Any]] = []
    path = pathlib.Path(__file__).with_name("hockey_sticks.json")
    for case in cases():
        some = points(*case)
        rows += some
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(*case[:4], [f"{row['delta']:.3e}" for row in some], len(some), "of", 2 * len(case[4]), flush=True)


if __name__ == "__main__":
    main()
