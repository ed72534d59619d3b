"""High-precision moments for tests/test_moments.py, written to moments.json.

Independent of the package: `E[S^k] = k!/n^k [x^k] A(x)^n` by the logarithm and the exponential of a
power series in mpmath, with enough digits for what cancels (checked by doubling the digits), and
`E[S^-p]` by product quadrature over all users (two users) or by the Laplace transform (n large).

    python tests/reference/make_moments.py
"""

import itertools
import json
import pathlib
import sys

import mpmath as mp


def forward(n, s, rate, weight, orders, digits):
    with mp.workdps(digits):
        top = max(orders)
        s, rate, weight = mp.mpf(s), mp.mpf(rate), mp.mpf(weight)
        a = [(1 + rate * mp.expm1((mp.mpf(i) ** 2 - i) / (2 * s * s))) / mp.factorial(i) for i in range(top + 1)]
        # log A(x), multiplied by j: jl[k] = k a_k - sum_j jl[j] a_(k-j)
        jl = [mp.mpf(0)] * (top + 1)
        for k in range(1, top + 1):
            jl[k] = k * a[k] - mp.fdot(zip(jl[1:k], a[k - 1 : 0 : -1], strict=True))
        power = [mp.mpf(1)]
        # exp(n log A(weight x / n) + (1 - weight) x)
        scaled = [n * jl[j] * (weight / n) ** j + ((1 - weight) if j == 1 else 0) for j in range(top + 1)]
        for k in range(1, top + 1):
            power.append(mp.fdot(zip(scaled[1 : k + 1], power[k - 1 :: -1], strict=True)) / k)
        return {k: mp.log(power[k] * mp.factorial(k)) for k in orders}


def checked_forward(n, s, rate, weight, orders):
    digits = 40 + max(orders)
    while True:
        one, two = (forward(n, s, rate, weight, orders, d) for d in (digits, digits + digits // 2))
        if all(abs(one[k] / two[k] - 1) < mp.mpf(10) ** -20 for k in orders):
            return two
        digits *= 2


def reverse_pair(s, p):
    """Two users: trapezoidal rule over z_1 and z_2."""
    with mp.workdps(25):
        h = mp.mpf("0.15")
        s = mp.mpf(s)
        # the integrand of E[S^-p] sits around z = -p / (2 s)
        centre = -mp.mpf(p) / (2 * s)
        z = [centre + h * i for i in range(-int(13 / h), int((13 + p / s) / h) + 1)]
        w = [mp.exp(x / s - 1 / (2 * s * s)) for x in z]
        g = [mp.npdf(x) * h for x in z]
        total = mp.fsum(
            gi * mp.fsum(gj * ((wi + wj) / 2) ** -p for wj, gj in zip(w, g, strict=True))
            for wi, gi in zip(w, g, strict=True)
        )
        return mp.log(total)


def reverse_large(n, s, rate, p):
    """Laplace transform, both integrals by Gauss-Legendre panels in t and z (not in log t)."""
    with mp.workdps(30):
        s, rate = mp.mpf(s), mp.mpf(rate)
        nodes = mp.calculus.quadrature.GaussLegendre(mp.mp).calc_nodes(4, mp.mp.prec)
        panels = [(mp.mpf(i), mp.mpf(i + 2)) for i in range(-12, int(2 / s) + 13, 2)]
        zs, gs = [], []
        for lo, hi in panels:
            for x, wt in nodes:
                z = (lo + hi) / 2 + x * (hi - lo) / 2
                zs.append(mp.expm1(z / s - 1 / (2 * s * s)))
                gs.append(wt * (hi - lo) / 2 * mp.npdf(z))

        def excess(t):
            a = t / n
            e = mp.fsum(g * (mp.expm1(-a * m) + a * m) for m, g in zip(zs, gs, strict=True))
            return mp.expm1(n * mp.log1p(rate * e))

        spread = mp.sqrt(p)
        edges = [mp.mpf(0), p / mp.mpf(2)] + [p + spread * j for j in (-2, 2, 7, 13)]
        edges += [edges[-1] + 25, edges[-1] + 70]
        edges += [edges[-1] * 2**j for j in range(1, 6)]  # t is near p / S, and S may be small
        edges = sorted({e for e in edges if e >= 0})
        total = mp.mpf(0)
        for lo, hi in itertools.pairwise(edges):
            for x, wt in nodes:
                t = (lo + hi) / 2 + x * (hi - lo) / 2
                total += wt * (hi - lo) / 2 * t ** (p - 1) * mp.exp(-t) * excess(t)
        return mp.log1p(total / mp.gamma(p))


def rows():
    small = [2, 3, 5, 8, 16, 32, 64, 128]
    for n in (1, 2, 3, 10, 100, 1000, 60_000, 10**6, 10**9):
        for s in (0.3, 0.5, 1.0, 3.0, 9.48, 30.0, 100.0):
            for k, v in checked_forward(n, s, 1, 1, small).items():
                yield "forward", n, s, 1.0, 1.0, k, v
    thinned = [(60_000, 5.0, 0.1, 1.0), (1000, 1.0, 0.001, 1.0), (10, 0.5, 0.5, 1.0)]
    sampled = [(6000, 5.0, 1.0, 0.1), (5, 1.0, 1.0, 0.25)]
    for n, s, rate, weight in thinned + sampled:
        for k, v in checked_forward(n, s, rate, weight, small).items():
            yield "forward", n, s, rate, weight, k, v
    for s in (0.5, 1.0, 3.0, 30.0):
        for p in (1, 2, 7, 20):
            yield "reverse", 2, s, 1.0, 1.0, p, reverse_pair(s, p)
    for n, s, rate in [(60_000, 9.48, 1.0), (1000, 1.0, 1.0), (10**9, 100.0, 1.0), (60_000, 5.0, 0.1), (300, 0.5, 1.0)]:
        for p in (1, 7, 31):
            yield "reverse", n, s, rate, 1.0, p, reverse_large(n, s, rate, p)
    for n, s in [(60_000, 9.48), (2, 1.0), (60, 10.0), (1000, 0.3), (1000, 100.0), (10**9, 30.0), (10**9, 0.5)]:
        for k, v in checked_forward(n, s, 1, 1, [200, 500, 1000]).items():
            yield "forward", n, s, 1.0, 1.0, k, v


def main():
    path = pathlib.Path(__file__).with_name("moments.json")
    header = ["direction", "users", "scale", "rate", "weight", "order or power", "log moment"]
    found = []
    for *point, value in rows():
        found.append([*point, mp.nstr(value, 20)])
        print(*found[-1], file=sys.stderr)
        # Written as it grows: the largest orders take minutes.
        path.write_text(json.dumps({"columns": header, "rows": found}).replace("], [", "],\n["))


if __name__ == "__main__":
    main()
