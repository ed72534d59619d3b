"""The page as it is used: the real command, its doors, and a real browser (Chromium, driven by Playwright)."""

import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ET

import httpx
import pytest

import shoal
from shoal import (
    Accountant,
    BallsAndBins,
    FixedBatch,
    LocalGaussian,
    PoissonSampling,
    RandomAllocation,
    SequentialShuffle,
    Shuffle,
    ShuffledCheckIn,
    ShuffledEpochs,
    SubsampledShuffle,
    calibrate,
)
from shoal.formatting import rounded

pytestmark = pytest.mark.xdist_group("explore")  # one server and one browser for all

SLOW = {"mechanism": "check-in", "users": "100", "rate": "0.1", "sigma": "0.6", "rounds": "5540", "delta": "1e-5"}
"""Any crowd takes seconds here."""
QUICK = {"mechanism": "shuffle", "users": "1000", "sigma": "3", "rounds": "10", "delta": "1e-6", "crowd": "identical"}


def start(*words):
    """The command, and the address that it prints."""
    command = [sys.executable, "-m", "shoal.cli", "explore", "--no-browser", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\S*", server.stdout.readline())[0]
    return server, address


def stop(server):
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=60)


@pytest.fixture(scope="module")
def running():
    server, address = start()
    yield server, address
    stop(server)


@pytest.fixture
def address(running):
    return running[1]


def workers(server):
    """The processes that compute: grandchildren by way of the process that they are forked from."""
    found, parents = set(), {server.pid}
    for _ in range(2):
        parents = {
            int(entry.name)
            for entry in pathlib.Path("/proc").glob("[0-9]*")
            if (status := read(entry / "stat"))
            and int(status.rpartition(")")[2].split()[1]) in parents
            and status.rpartition(")")[2].split()[0] != "Z"
        }
        found = parents
    return found


def read(path):
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def until(condition, what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def asked(address, state, page="test"):
    """All pieces of an answer."""
    answer = httpx.post(f"{address}api/answers", json={"page": page, "state": state}, timeout=120)
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


# Doors


def test_only_who_knows_the_address_gets_in(address):
    assert httpx.get(address).status_code == 200
    base = address.rsplit("/", 2)[0]
    for path in ("/", "/page/main.js", "/api/fields", f"/{'x' * 32}/", f"/{'x' * 32}/api/fields", "//", ""):
        assert httpx.get(base + path).status_code == 403, path
    assert httpx.post(f"{base}/api/answers", json={"page": "p"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:80", ""])
def test_a_foreign_name_that_points_here_does_not_get_in(address, host):
    assert httpx.get(address, headers={"host": host}).status_code == 403


def test_another_site_s_page_does_not_get_in(address):
    for origin, status in (("http://evil.example", 403), ("null", 403), (re.match(r"http://[^/]+", address)[0], 200)):
        answer = httpx.post(
            f"{address}api/answers", json={"page": "o", "state": QUICK}, headers={"origin": origin}, timeout=60
        )
        assert answer.status_code == status, origin


def test_nothing_may_be_loaded_from_elsewhere(address):
    headers = httpx.get(address).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "'unsafe" not in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    folder = pathlib.Path(shoal.__file__).parent / "web" / "page"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.|@import|innerHTML|eval\(", text), file.name


def test_it_listens_on_the_loopback_address_only(running):
    server, address = running
    port = int(re.search(r":(\d+)/", address)[1])
    lines = (
        pathlib.Path("/proc/net/tcp").read_text().splitlines() + pathlib.Path("/proc/net/tcp6").read_text().splitlines()
    )
    listening = [
        line.split()[1] for line in lines if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    ]
    assert listening == [f"0100007F:{port:04X}"]
    assert server.poll() is None


@pytest.mark.parametrize("path", ["page/none.js", "page/..%2Fserver.py", "page/__init__.py", "page/", "api/nothing"])
def test_other_files_are_not_given(address, path):
    assert httpx.get(address + path).status_code == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"page": 3}', b'{"page": "p", "state": {"users": 3}}', b"\xff"]
)
def test_a_bad_request_is_refused(address, body):
    assert httpx.post(f"{address}api/answers", content=body).status_code == 400


# Answers


def test_pieces_come_in_order_and_end(address):
    found = asked(address, QUICK)
    kinds = [(piece["piece"], piece.get("crowd")) for piece in found]
    assert kinds[0][0] == "setting"
    order = [("epsilon", "identical"), ("bound", "any"), ("epsilon", "any"), ("attack", "any"), ("curve", "identical")]
    assert [kind for kind in kinds if kind in order] == order  # numbers first, pictures last
    assert kinds[-1] == ("end", None)
    assert {crowd for kind, crowd in kinds if kind == "curve"} == {"identical", "local", "any"}


def slow_begun(address, page):
    """A question of which the quick part is answered and any crowd is being computed."""
    client = httpx.Client(timeout=120)
    stream = client.send(
        client.build_request("POST", f"{address}api/answers", json={"page": page, "state": SLOW}), stream=True
    )
    lines = stream.iter_lines()
    for line in lines:
        if json.loads(line).get("crowd") == "identical":
            time.sleep(0.3)  # the quick process has nothing left to do, the slow one is at it
            return client, stream, lines
    raise AssertionError("nothing came")


@pytest.mark.parametrize("how", ["the page goes away", "the page asks something else"])
def test_what_is_not_wanted_any_more_is_not_computed(running, how):
    server, address = running
    asked(address, QUICK)
    before = workers(server)
    assert len(before) == 3
    client, stream, lines = slow_begun(address, "impatient")
    if how == "the page goes away":
        stream.close()
        client.close()
        until(lambda: len(workers(server) & before) == 2, "the process was not ended")
        found = asked(address, QUICK, "other")
    else:
        found = asked(address, QUICK, "impatient")
        assert len(workers(server) & before) == 2  # the others need not be forked anew
        assert not any(json.loads(line).get("crowd") == "any" for line in lines)
        client.close()
    assert found[-1]["piece"] == "end"
    assert len(workers(server)) == 3


def test_a_process_that_dies_is_replaced(running):
    server, address = running
    for pid in workers(server):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not workers(server), "they did not die")
    assert any(piece["piece"] == "error" for piece in asked(address, QUICK))
    assert asked(address, QUICK)[-1]["piece"] == "end"


def test_it_ends_cleanly_and_leaves_no_process():
    server, address = start("#mechanism=local&sigma=3")
    assert address.endswith("/#mechanism=local&sigma=3")
    httpx.get(address.partition("#")[0] + "api/fields", timeout=60)
    running = until(lambda: workers(server), "no process computes")
    stop(server)
    assert server.returncode == 0
    until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in running), "processes are left")


# In the browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("the page was not tried in a browser: Chromium is not installed")
    with playwright.sync_playwright() as driver:
        shown = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield shown
        shown.close()


@pytest.fixture
def look(browser, address, request):
    """Open the page with a state. At the end nothing has left the machine and the console is silent."""
    context = browser.new_context(accept_downloads=True, **getattr(request, "param", {}))
    context.set_default_timeout(60_000)
    troubles, asked_for = [], []

    def open_page(state="", where=address):
        page = context.new_page()
        page.on(
            "console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda one: asked_for.append(one.url))
        page.goto(where + (f"#{state}" if state else ""))
        page.locator("body:not([inert])").wait_for()
        return page

    yield open_page
    context.close()
    assert troubles == []
    outside = [url for url in asked_for if not url.startswith((address, "blob:", "http://127.0.0.1:"))]
    assert outside == []
    assert asked_for


def says(locator, text):
    from playwright.sync_api import expect

    expect(locator).to_have_text(text, timeout=60_000)


def upper(page, crowd):
    return page.locator(f"tr[data-crowd={crowd}]:not(.stale) .upper")


def value(page, name):
    return float(page.locator(f"#{name}").input_value().replace(",", ""))


def link(state):
    return "&".join(f"{name}={text}" for name, text in state.items())


KINDS = [
    (ShuffledCheckIn, {"users": 5_000, "rate": 0.2, "sigma": 3.0}),
    (SubsampledShuffle, {"users": 5_000, "sample": 500, "sigma": 3.0}),
    (Shuffle, {"users": 5_000, "sigma": 3.0}),
    (BallsAndBins, {"bins": 100, "sigma": 3.0}),
    (LocalGaussian, {"sigma": 3.0}),
    (PoissonSampling, {"rate": 0.02, "sigma": 3.0}),
    (FixedBatch, {"records": 5_000, "batch": 100, "sigma": 3.0}),
    (RandomAllocation, {"steps": 100, "picks": 2, "epochs": 1, "sigma": 3.0}),
]
MOVED = {
    "check-in": ("users", "rate", "sigma", "rounds", "delta"),
    "subsampled": ("sample",),
    "shuffle": ("users",),
    "balls-and-bins": ("bins", "rounds"),
    "local": ("sigma",),
    "poisson": ("rate",),
    "fixed-batch": ("batch",),
    "allocation": ("picks",),
}


def test_each_slider_leads_to_the_numbers_of_the_library(look):
    for cls, given in KINDS:
        fields = {**given}
        asked_about = {"rounds": 20, "delta": 1e-6}
        page = look(link({"mechanism": cls.label, **given, **asked_about}))
        crowded = "crowd" in cls.__dataclass_fields__
        crowd = "identical" if crowded else "only"
        for name in MOVED[cls.label]:
            page.locator(f"#slider-{name}").press("ArrowRight")
            new = value(page, name)
            assert new > {**fields, **asked_about}[name]
            (asked_about if name in asked_about else fields)[name] = new
            m = cls(**fields, **({"crowd": crowd} if crowded else {}))
            says(upper(page, crowd), rounded(m.epsilon(delta=asked_about["delta"], rounds=asked_about["rounds"]).upper))
            if name in ("bins", "sigma", "batch"):
                named = page.locator(f"label[for={name}]").text_content()
                says(page.locator("#h-curve"), f"ε against {named[0].lower()}{named[1:]}")
                page.locator("#curve:not(.stale) svg .mark").first.wait_for()
        page.close()


def test_the_page_says_what_the_library_says(look):
    page = look(
        link({"mechanism": "shuffle", "users": 1_000, "sigma": 3, "rounds": 10, "delta": "1/1000000", "dimension": 16})
    )
    m = Shuffle(users=1_000, sigma=3.0)
    truth = m.statement(delta=1e-6, rounds=10)
    says(page.locator("#hero:not(.stale)"), rounded(truth.answer.upper))
    says(upper(page, "any"), rounded(truth.answer.upper))
    says(page.locator("tr[data-crowd=any] .lower"), rounded(truth.answer.lower, "down"))
    local = LocalGaussian(sigma=3.0).epsilon(delta=1e-6, rounds=10)
    says(upper(page, "local"), rounded(local.upper))
    says(page.locator("#sentence:not(.stale)"), truth.sentence())
    assert page.locator("#short").text_content() == truth.in_short()[0].upper() + truth.in_short()[1:]
    says(page.locator("#right:not(.stale)"), rounded(100.0 * m.tradeoff(0.01, rounds=10).upper))
    page.locator("#odds").select_option("1,000")
    says(page.locator("#right"), rounded(1_000.0 * m.tradeoff(0.001, rounds=10).upper))
    says(page.locator("#cost"), "0.3795")  # 3 * sqrt(16 / 1000) = 0.37947
    assert (
        "m = shoal.Shuffle(users=1_000, sigma=3.0, adjacency='zero-out', crowd='any')"
        in page.locator("#python").text_content()
    )
    assert page.locator("#shell").text_content().startswith("shoal epsilon shuffle --users 1000 --sigma 3.0")
    # What people have, in words, leads to the mechanism.
    page.get_by_label("Each user sends under its own name").check()
    says(page.locator("#verdict b"), "local")
    says(page.locator("#hero:not(.stale)"), rounded(LocalGaussian(sigma=3.0).epsilon(delta=1e-6, rounds=10).upper))
    page.get_by_label("My loader shuffles").check()
    says(page.locator("#verdict b"), "shuffled-epochs")
    page.locator("#kind-loader-balls-and-bins").check()
    says(page.locator("#verdict b"), "balls-and-bins")
    page.locator("input[name=adjacency][value=replace]").check()
    says(page.locator("#error-adjacency"), "adjacency must be zero-out for BallsAndBins, got 'replace'")
    page.get_by_label("Phones send noisy updates").check()
    says(page.locator("#verdict b"), "check-in")
    page.locator("#kind-mixed-shuffle").check()
    page.get_by_label("one vector").check()
    twice = Shuffle(users=1_000, sigma=3.0, adjacency="replace", crowd="identical").epsilon(delta=1e-6, rounds=10)
    says(page.locator("#hero:not(.stale)"), rounded(twice.upper))


def test_a_secret_order_by_keyboard_alone(look):
    """From the question to a flag, a warning and a record, without a mouse."""
    page = look(link({"mechanism": "local", "steps": 50, "epochs": 2, "sigma": 3, "rounds": 2, "delta": "1e-6"}))
    page.locator("#situation-named").focus()
    page.keyboard.press("ArrowDown")  # round to the first of the four: my loader shuffles
    says(page.locator("#verdict b"), "shuffled-epochs")
    m = ShuffledEpochs(steps=50, epochs=2, sigma=3.0)
    says(page.locator("#hero:not(.stale)"), rounded(m.epsilon(delta=1e-6, rounds=2).upper))
    says(page.locator("#caution"), m.caution(delta=1e-6, epsilon=m.epsilon(delta=1e-6, rounds=2), rounds=2))
    page.locator("#slider-epochs").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    truth = m.replace(persistent=True).statement(delta=1e-6, rounds=2)
    says(page.locator("#hero:not(.stale)"), rounded(truth.answer.upper))
    facts = page.locator("#facts").inner_text()
    assert all(words in facts for _, words in truth.facts())
    page.locator("#format").focus()
    page.keyboard.press("Tab")
    with page.expect_download() as waiting:
        page.keyboard.press("Enter")
    assert pathlib.Path(waiting.value.path()).read_text() == truth.record("statement", "markdown")


def test_a_curve_is_smooth_and_passes_through_its_points(look):
    page = look(link({"mechanism": "sequential", "users": 500, "sigma": 3, "delta": "1e-6", "crowd": "identical"}))
    truth = SequentialShuffle(users=500, sigma=3.0, crowd="identical").epsilon(delta=1e-6, rounds=100)
    says(upper(page, "identical"), rounded(truth.upper))
    page.locator("#curve:not(.stale) svg .line.identical").wait_for()
    drawn = page.evaluate("""() => {
      const svg = document.querySelector("#curve svg");
      const place = (dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value];
      const dots = [...svg.querySelectorAll(".dot.identical")].map(place);
      const line = svg.querySelector(".line.identical");
      const length = line.getTotalLength();
      const along = Array.from({ length: 2001 }, (_, i) => line.getPointAtLength(length * i / 2000));
      return { dots, points: along.map((point) => [point.x, point.y]) };
    }""")
    assert len(drawn["dots"]) > 25
    for x, y in drawn["dots"]:
        assert min(abs(x - a) + abs(y - b) for a, b in drawn["points"]) < 1.0
    # It rises where the points do, and nowhere bends by more than a few degrees at once: there are no corners.
    heights = [y for _, y in drawn["points"]]
    assert all(after <= before + 0.02 for before, after in itertools.pairwise(heights))
    steps = [(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(drawn["points"][::20])]
    angles = [math.atan2(dy, dx) for dx, dy in steps]
    assert max(abs(after - before) for before, after in itertools.pairwise(angles)) < 0.1


def test_an_error_stands_at_its_field_and_goes_again(look):
    page = look(link(QUICK))
    says(upper(page, "identical"), re.compile(r"\d"))
    page.locator("#sigma").fill("-1")
    says(page.locator("#error-sigma"), "sigma must be positive, got -1.0")
    assert page.locator("#sigma").get_attribute("aria-invalid") == "true"
    assert page.locator("#hero").text_content() == "…"  # no number stands beside a setting that has none
    page.locator("#sigma").fill("4")
    truth = Shuffle(users=1_000, sigma=4.0, crowd="identical").epsilon(delta=1e-6, rounds=10)
    says(upper(page, "identical"), rounded(truth.upper))
    assert page.locator("#error-sigma").is_hidden()


def test_a_moved_slider_cancels(look, running):
    page = look(link(SLOW))
    ended = []
    page.on("requestfailed", lambda request: ended.append(request.failure))
    says(upper(page, "identical"), re.compile(r"\d"))
    says(page.locator("#busy"), "any crowd follows …")
    before = workers(running[0])
    page.locator("#sigma").fill("30")
    truth = ShuffledCheckIn(users=100, rate=0.1, sigma=30.0).epsilon(delta=1e-5, rounds=5_540)
    says(upper(page, "any"), rounded(truth.upper))
    assert ended[0] == "net::ERR_ABORTED"
    assert workers(running[0]) != before


def test_a_key_on_a_slider_asks_once(look):
    """It is heard as it moves and as it stops; the second would end the answer to the first."""
    page = look(link(QUICK))
    says(page.locator("#hero:not(.stale)"), re.compile(r"\d"))
    asks = []
    page.on("request", lambda request: asks.append(request.url) if request.url.endswith("api/answers") else None)
    page.locator("#slider-sigma").press("ArrowRight")
    truth = Shuffle(users=1_000, sigma=value(page, "sigma"), crowd="identical").epsilon(delta=1e-6, rounds=10)
    says(upper(page, "identical"), rounded(truth.upper))
    assert len(asks) == 1


def test_solving_backwards(look):
    page = look(link({**QUICK, "epsilon": "0.05"}))
    page.get_by_label("Hold ε, and solve").check()
    m = Shuffle(users=1_000, sigma=3.0, crowd="identical")
    least = calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=0.05, delta=1e-6, rounds=10)
    found = rounded(least, digits=6)
    from playwright.sync_api import expect

    expect(page.locator("#sigma")).to_have_value(found, timeout=60_000)
    says(page.locator("#hero:not(.stale)"), rounded(m.replace(sigma=float(found)).epsilon(delta=1e-6, rounds=10).upper))
    assert float(page.locator("#hero").text_content()) <= 0.05
    assert page.locator("#users").is_disabled()
    assert "shoal.calibrate.sigma" in page.locator("#python").text_content()
    # The one that was found is moved: then the third is found.
    page.locator("#sigma").fill("8")
    most = calibrate.rounds(m.replace(sigma=8.0), epsilon=0.05, delta=1e-6)
    expect(page.locator("#rounds")).to_have_value(f"{most:,}", timeout=60_000)
    # Another one is locked: users are found.
    page.get_by_label("Lock: Rounds").click()
    page.locator("#sigma").fill("5")
    fewest = calibrate.users(lambda n: m.replace(sigma=5.0, users=n), epsilon=0.05, delta=1e-6, rounds=most)
    expect(page.locator("#users")).to_have_value(f"{fewest:,}", timeout=60_000)
    page.locator("#epsilon").fill("0")
    says(page.locator("#error-epsilon"), "epsilon must be positive, got 0.0")


def test_a_link_holds_the_whole_state(look):
    page = look(link({**QUICK, "axis": "sigma"}))
    page.locator("#slider-users").press("ArrowRight")
    page.locator("input[name=adjacency][value=replace]").check()
    page.locator("#clip").fill("0.5")
    page.locator("#odds").select_option("10")
    page.locator("#with-local").check()
    says(page.locator("#hero:not(.stale)"), re.compile(r"\d"))
    page.wait_for_url(re.compile(r"clip=0\.5.*local=yes"))
    other = look(page.url.partition("#")[2])
    for one in (page, other):
        one.locator("#curve svg .line.local").wait_for(state="attached")
        says(one.locator("#right:not(.stale)"), re.compile(r"\d"))
    for place in ("#hero", "#sentence", "#right", "#cost", "#python", "#h-curve"):
        says(other.locator(place), page.locator(place).text_content())
    assert other.locator("#users").input_value() == page.locator("#users").input_value()
    assert other.url == page.url


def test_what_can_be_saved(look):
    page = look(link({**QUICK, "axis": "rounds", "crowd": "any"}))
    says(page.locator("#hero:not(.stale)"), re.compile(r"\d"))
    says(page.locator("#busy"), "")
    page.locator("#curve svg .line.any").wait_for()
    truth = Shuffle(users=1_000, sigma=3.0).statement(delta=1e-6, rounds=10)

    def saved(button, name):
        with page.expect_download() as waiting:
            page.locator(button).click()
        assert waiting.value.suggested_filename == name
        return pathlib.Path(waiting.value.path()).read_text()

    endings = {"markdown": "md", "latex": "tex", "yaml": "yaml", "json": "json"}
    for document, format in (
        ("statement", "markdown"),
        ("statement", "latex"),
        ("registry", "yaml"),
        ("checklist", "json"),
    ):
        page.locator("#document").select_option(document)
        page.locator("#format").select_option(format)
        text = saved("#save-record", f"privacy-{document}.{endings[format]}")
        assert text == truth.record(document, format)
    everything = json.loads(saved("#save-json", "privacy.json"))
    assert everything["statements"]["any"] == truth.to_dict()
    assert set(everything["statements"]) == {"any", "identical", "local"}
    rows = [line.split(",") for line in saved("#save-csv", "epsilon.csv").splitlines()]
    assert rows[0] == ["crowd", "rounds", "epsilon_lower", "epsilon_upper"]
    (here,) = [row for row in rows if row[:2] == ["any", "10"]]
    assert [float(x) for x in here[2:]] == pytest.approx([truth.answer.lower, truth.answer.upper], rel=1e-3)
    rates = saved("#save-attack-csv", "attack.csv").splitlines()
    assert rates[0] == "crowd,fpr,tpr_lower,tpr_upper"
    for button, name in (("#save-svg", "epsilon.svg"), ("#save-attack-svg", "attack.svg")):
        drawn = saved(button, name)
        assert ET.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
        assert truth.sentence() in drawn
        assert "var(" not in drawn
    # Asked for before the new statement is there: the new one is saved, when it comes.
    with page.expect_download() as waiting:
        page.evaluate("""() => {
          const sigma = document.getElementById("sigma");
          sigma.value = "4";
          sigma.dispatchEvent(new Event("change"));
          document.getElementById("save-json").click();
        }""")
    later = Shuffle(users=1_000, sigma=4.0).statement(delta=1e-6, rounds=10)
    assert json.loads(pathlib.Path(waiting.value.path()).read_text())["statements"]["any"] == later.to_dict()


def test_the_budget_tab(look, tmp_path):
    m = Shuffle(users=500, sigma=4.0, crowd="identical")
    a = (
        Accountant()
        .compose(ShuffledCheckIn(users=1_000, rate=0.1, sigma=3.0, crowd="identical"), rounds=10)
        .compose(m, rounds=2)
    )
    (tmp_path / "state.json").write_text(json.dumps(a.state_dict()))
    (tmp_path / "bad.json").write_text("{}")
    page = look()
    page.locator("#tab-explore").press("ArrowRight")
    assert page.locator("#tab-budget").get_attribute("aria-selected") == "true"
    page.locator("#file").set_input_files(tmp_path / "state.json")
    says(page.locator("#spent-epsilon:not(.stale)"), rounded(a.epsilon(delta=1e-5).upper))
    page.locator("#budget-epsilon").fill("0.4")
    page.locator("#budget-delta").fill("1e-6")
    page.locator("#budget-delta").press("Enter")
    says(page.locator("#spent-epsilon:not(.stale)"), rounded(a.epsilon(delta=1e-6).upper))
    most = calibrate.rounds(m, epsilon=0.4, delta=1e-6, after=a)
    says(page.locator("#remaining:not(.stale)"), f"{most:,}")
    says(page.locator("#spent-left"), rounded(0.4 - a.epsilon(delta=1e-6).upper, "down"))
    assert page.locator("#budget-sentence").text_content() == a.statement(delta=1e-6).sentence()
    page.locator("#file").set_input_files(tmp_path / "bad.json")
    says(page.locator("#error-file"), "state must have the keys version and ledger, got ")


def test_the_command_opens_a_ledger(look, tmp_path):
    a = Accountant().compose(Shuffle(users=500, sigma=4.0, crowd="identical"), rounds=2)
    (tmp_path / "state.json").write_text(json.dumps(a.state_dict()))
    server, where = start("--budget", str(tmp_path / "state.json"))
    try:
        page = look(where=where)
        says(page.locator("#spent-epsilon:not(.stale)"), rounded(a.epsilon(delta=1e-5).upper))
        page.close()
    finally:
        stop(server)


@pytest.fixture(scope="module")
def axe():
    """axe-core, from npm, kept beside this Python."""
    kept = pathlib.Path(sys.prefix) / ".axe-core"
    script = kept / "package" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("accessibility was not checked: npm is not installed")
        kept.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", "axe-core"], cwd=kept, capture_output=True, text=True, check=False
        )
        if packed.returncode:
            pytest.skip(f"accessibility was not checked: axe-core could not be had ({packed.stderr.strip()[-200:]})")
        with tarfile.open(kept / packed.stdout.strip().splitlines()[-1]) as archive:
            archive.extract("package/axe.min.js", kept)
    return script.read_text()


LOOKS = [
    {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
]


@pytest.mark.parametrize("look", LOOKS, indirect=True, ids=["desktop", "phone, dark"])
def test_axe_finds_no_serious_problem(look, axe, tmp_path):
    page = look(link({**QUICK, "hold": "sigma", "epsilon": "0.05"}))
    says(page.locator("#hero:not(.stale)"), re.compile(r"\d"))
    page.locator("#curve svg .line").first.wait_for()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= page.viewport_size["width"]  # nothing sticks out sideways
    page.evaluate(axe)
    problems = page.evaluate("axe.run().then((found) => found.violations)")
    page.locator("#clip").fill("-1")
    says(page.locator("#error-clip"), "clip must be positive, got -1.0")
    problems += page.evaluate("axe.run().then((found) => found.violations)")
    (tmp_path / "state.json").write_text(
        json.dumps(Accountant().compose(LocalGaussian(sigma=9.0), rounds=2).state_dict())
    )
    page.locator("#tab-budget").click()
    page.locator("#file").set_input_files(tmp_path / "state.json")
    says(page.locator("#remaining:not(.stale)"), re.compile(r"\d"))
    problems += page.evaluate("axe.run().then((found) => found.violations)")
    bad = [(p["id"], [n["html"][:200] for n in p["nodes"]]) for p in problems if p["impact"] in ("serious", "critical")]
    assert bad == []
