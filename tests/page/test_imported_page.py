"""The pages of others' results: what they lack is said, and leaves no empty picture or row."""

import pytest
from typer.testing import CliRunner

from orchestration.cli.main import app

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WIDTHS = (360, 390, 1440)

# Four hosts on two leaves and a spine, as the HPCC simulator's files have them.
TOPOLOGY = """\
7 3 6
4 5 6
0 4 25Gbps 1000ns 0.000000
1 4 25Gbps 1000ns 0.000000
2 5 25Gbps 1000ns 0.000000
3 5 25Gbps 1000ns 0.000000
4 6 100Gbps 1000ns 0.000000
5 6 100Gbps 1000ns 0.000000
"""
CONFIG = """\
CC_MODE 8
KMAX_MAP 1 25000000000 400
KMIN_MAP 1 25000000000 100
PMAX_MAP 1 25000000000 0.2
"""
QLEN = "time: 2000000000\n4 1 1\n5 1 1\ntime: 2010000000\n4 1 80000 15000 5001\n5 1 100001\n"
CSV = "from,to,size,at,took\nh1,h2,20000,0,9\nh3,h2,1500,4,3.5\nh4,h2,64000,9,31\n"
CSV_MAPPING = """\
testbed: graphcc
columns:
  src: from
  dst: to
  bytes: {column: size, unit: B}
  start: {column: at, unit: us}
  fct: {column: took, unit: us}
"""
# One of OMNeT++'s queues is recorded; its packets are not.
VEC = """\
version 2
run General-0
vector 0 Net.host[1].app[0] start:vector ETV
vector 1 Net.host[1].app[0] size:vector ETV
vector 2 Net.host[1].app[0] fct:vector ETV
vector 3 Net.leaf1.eth[0].queue length:vector ETV
3\t1\t0\t0
0\t2\t0.0001\t0.0001
1\t2\t0.0001\t4000
2\t2\t0.0001\t0.00002
3\t3\t0.0011\t4500
0\t4\t0.0022\t0.0022
1\t4\t0.0022\t64000
2\t4\t0.0022\t0.000045
"""
VEC_MAPPING = r"""
testbed: graphcc
hosts: {"0": h1, "1": h2}
flows:
  kind: vectors
  module: 'Net\.host\[(?P<src>\d+)\]\.app\[(?P<dst>\d+)\]'
  start: start:vector
  bytes: size:vector
  fct: fct:vector
  time_unit: s
  size_unit: B
queues:
  module: 'Net\.(?P<device>\w+)\.(?P<port>eth\[\d+\])\.queue'
  length: length:vector
  size_unit: B
  ports: {"leaf1:eth[0]": "leaf1:eth0"}
  sample_period: 50us
"""
HPCC = "the-simulator-of-others"


def closloop(*words, exit_code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == exit_code, done.output
    return done.output


def write_hpcc(folder, seed, slower):
    """Write a run of 40 flows, each seed's of its own."""
    folder.mkdir()
    flows, ends = [], []
    ports = dict.fromkeys(((a, b) for a in range(4) for b in range(4)), 10_000)
    for number in range(40):
        src = (number * seed) % 4
        dst = (src + 1 + number % 3) % 4
        size = 1_000 + number * number * 300
        start = 2_000_000_000 + 5_000 * number
        alone = 6_000 + size * 8 // 25
        took = int(alone * (1.2 + slower * (number % 5)))
        flows.append(f"{src} {dst} 3 100 {size} {start / 1e9:.9f}\n")
        src_address, dst_address = (f"{0x0B000001 + 256 * node:08x}" for node in (src, dst))
        port = ports[src, dst]
        ports[src, dst] += 1
        ends.append(f"{src_address} {dst_address} {port} 100 {size} {start} {took} {alone}\n")
    texts = {
        "topology": TOPOLOGY, "flow": f"{len(flows)}\n{''.join(flows)}", "fct": "".join(ends),
        "config": CONFIG, "qlen": QLEN,
    }  # fmt: skip
    for role, text in texts.items():
        (folder / f"{role}.txt").write_text(text)
    return [word for role in texts for word in (f"--{role}", folder / f"{role}.txt")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of three imports, and of one against another, by name."""
    place = tmp_path_factory.mktemp("imported")
    runs = place / "runs"
    for label, slower in ((HPCC, 0.1), ("b", 0.3)):
        for seed in (1, 3, 5):
            files = write_hpcc(place / f"{label}-{seed}", seed, slower)
            named = ("--label", label, "--seed", seed, "--repeat", seed, "-o", runs / "hpcc")
            closloop("import", "hpcc", *files, *named)
    for name, text in (("results.csv", CSV), ("csv.yml", CSV_MAPPING)):
        (place / name).write_text(text)
    for name, text in (("General-0.vec", VEC), ("vec.yml", VEC_MAPPING)):
        (place / name).write_text(text)
    mapped = ("--mapping", place / "csv.yml", "-o", runs / "csv")
    closloop("import", "csv", place / "results.csv", *mapped)
    mapped = ("--mapping", place / "vec.yml", "-o", runs / "omnetpp")
    closloop("import", "omnetpp", place / "General-0.vec", *mapped)
    found = {}
    for name in ("hpcc", "csv", "omnetpp"):
        closloop("report", runs / name)
        found[name] = runs / name / "report.html"
    pairs = {"compare": ("csv", "omnetpp"), "compare-itself": ("hpcc", "hpcc")}
    for name, (a, b) in pairs.items():
        found[name] = place / f"{name}.html"
        code = 0 if a == b else 1
        closloop("compare", runs / a, runs / b, "--out", found[name], exit_code=code)
    return found


@pytest.fixture(
    params=[
        (name, width)
        for name in ("hpcc", "csv", "omnetpp", "compare", "compare-itself")
        for width in WIDTHS
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
    scope="module",
)
def page(request, browser, pages):
    """A page on a phone or a desk, read from top to bottom; with its name."""
    name, width = request.param
    browser.open(pages[name], width)
    browser.read()
    return name, browser


# Rows of the tables that say nothing at all.
EMPTY_ROWS = """[...document.querySelectorAll("tbody tr")].filter((row) => {
  const cells = [...row.cells].slice(1).map((cell) => cell.textContent.trim());
  return cells.length && cells.every((text) => text === "–" || !text);
}).map((row) => row.textContent)"""
# What is told below rows must not lie beside the screen, where nobody looks.
BESIDE = """[...document.querySelectorAll(".more div")].filter((told) => {
  const box = told.getBoundingClientRect();
  return !box.width || box.right > innerWidth;
}).length"""


def test_it_is_quiet_and_nothing_in_it_is_empty_or_cut_off(page, pages):
    name, browser = page
    assert browser.complaints == []
    assert browser.requests == [pages[name].as_uri()]
    assert browser.run("document.querySelectorAll('.picture').length") >= 4
    assert browser.undrawn == []
    assert browser.misplaced == []
    assert browser.contrasts["found"] == []
    assert browser.run(EMPTY_ROWS) == []
    assert browser.run(BESIDE) == 0
    assert "nan" not in browser.run("document.body.innerText").lower().split()


SAID = {
    "hpcc": (
        "3 paired repeats",
        "the-simulator-of-others wins: ",
        "1% of the time a queue is longer than",
        "No queue was sampled over time.",
        "Not measured: packets marked;",
        "imported (HPCC ns-3) from flow.txt, topology.txt, config.txt",
    ),
    "csv": (
        "No queue was sampled over time.",
        "No metric of queues and links was measured.",
        "The one trial is valid.",
    ),
    "omnetpp": (
        "leaf1:eth0 towards h1 holds",
        "39 ports have no samples.",
        "Not measured: packets marked;",
    ),
    "compare": ("Not enough data", "only B has it", "no packet-hops counted in"),
    "compare-itself": ("Equivalent: ", "By flow size: no group of sizes differs."),
}


def test_what_is_not_there_is_said(page):
    name, browser = page
    text = browser.run("document.body.innerText")
    assert [words for words in SAID[name] if words not in text] == []


def test_a_queue_that_is_told_is_drawn(pages, browser):
    browser.open(pages["omnetpp"], WIDTHS[0])
    browser.read()
    ports = browser.run(
        "[...document.querySelectorAll('a[download=\"fabric-over-time.csv\"]')].flatMap((link) =>"
        " link.closest('figure').querySelector('.picture').data.flatMap((trace) => trace.y))"
    )
    assert ports == ["leaf1:eth0"]
