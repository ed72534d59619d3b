"""High-precision moments for tests/test_moments.py, written to moments.json.

Independent of the package: `E[S^k] = k!/n^k [x^k] A(x)^n` by the logarithm and the exponential of a
power series in mpmath, with enough digits for what cancels (checked by doubling the digits), and
`E[S^-p]` by product quadrature over all users (n = 2, 3) or by the Laplace transform (n large).

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


def reverse_small(n, s, p):
    """Trapezoidal rule over all z_1, ..., z_n."""
    with mp.workdps(25):
        h = mp.mpf("0.2") if n == 3 else mp.mpf("0.1")
        s = mp.mpf(s)
        # the integrand E[S^-p] sits around z = -p / (n s)
        centre = -mp.mpf(p) / (n * s)
        z = [centre + h * i for i in range(-int(8 / h), int((8 + p / s) / h) + 1)]
        w = [mp.exp(x / s - 1 / (2 * s * s)) for x in z]
        g = [mp.npdf(x) * h for x in z]
        total = mp.mpf(0)
        if n == 2:
            for wi, gi in zip(w, g, strict=True):
                total += gi * mp.fsum(gj * ((wi + wj) / 2) ** -p for wj, gj in zip(w, g, strict=True))
        return mp.log(total)


def reverse_large(n, s, rate, p):
    """Laplace transform, both integrals by Gauss-Legendre panels in t and z (not in log t)."""
    with mp.workdps(30):
        s, rate = mp.mpf(s), mp.mpf(rate)
        nodes = mp.calculus.quadrature.GaussLegendre(mp.mp).calc_nodes(5, mp.mp.prec)
        panels = [(mp.mpf(i), mp.mpf(i + 1)) for i in range(-14, int(2 / s) + 15)]
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
        edges = [mp.mpf(0), p / mp.mpf(2)] + [p + spread * j for j in (-2, 0, 2, 4, 6, 9, 13, 20)]
        edges = sorted({e for e in edges if e >= 0})
        total = mp.mpf(0)
        for lo, hi in itertools.pairwise(edges):
            for x, wt in nodes:
                t = (lo + hi) / 2 + x * (hi - lo) / 2
                total += wt * (hi - lo) / 2 * t ** (p - 1) * mp.exp(-t) * excess(t)
        return mp.log1p(total / mp.gamma(p))


def main():
    rows = []
    small = [2, 3, 5, 8, 16, 32, 64, 128]
    for n in (1, 2, 3, 10, 100, 1000, 60_000, 10**6, 10**9):
        for s in (0.3, 0.5, 1.0, 3.0, 9.48, 30.0, 100.0):
            for k, v in checked_forward(n, s, 1, 1, small).items():
                rows.append(["forward", n, s, 1.0, 1.0, k, mp.nstr(v, 20)])
        print("n", n, file=sys.stderr)
    for n, s, rate, weight in [
        (60_000, 5.0, 0.1, 1.0),
        (1000, 1.0, 0.001, 1.0),
        (10, 0.5, 0.5, 1.0),
        (6000, 5.0, 1.0, 0.1),
        (5, 1.0, 1.0, 0.25),
    ]:
        for k, v in checked_forward(n, s, rate, weight, small).items():
            rows.append(["forward", n, s, rate, weight, k, mp.nstr(v, 20)])
    for n, s in [(2, 1.0), (60, 10.0), (1000, 0.3), (1000, 100.0), (60_000, 9.48), (10**9, 30.0), (10**9, 0.5)]:
        for k, v in checked_forward(n, s, 1, 1, [200, 500, 1000]).items():
            rows.append(["forward", n, s, 1.0, 1.0, k, mp.nstr(v, 20)])
        print("large", n, s, file=sys.stderr)
    for s in (0.5, 1.0, 3.0, 30.0):
        for p in (1, 2, 7, 20):
            rows.append(["reverse", 2, s, 1.0, 1.0, p, mp.nstr(reverse_small(2, s, p), 20)])
    print("reverse small", file=sys.stderr)
    for n, s, rate in [(60_000, 9.48, 1.0), (1000, 1.0, 1.0), (10**9, 100.0, 1.0), (60_000, 5.0, 0.1), (300, 0.5, 1.0)]:
        for p in (1, 7, 31):
            rows.append(["reverse", n, s, rate, 1.0, p, mp.nstr(reverse_large(n, s, rate, p), 20)])
        print("reverse", n, s, file=sys.stderr)
    path = pathlib.Path(__file__).with_name("moments.json")
    header = ["direction", "users", "scale", "rate", "weight", "order or power", "log moment"]
    path.write_text(json.dumps({"columns": header, "rows": rows}, indent=None).replace("], [", "],\n["))


if __name__ == "__main__":
    main()
