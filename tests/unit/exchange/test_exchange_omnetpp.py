"""Result files as OMNeT++ 5 (version 2) and 6 (version 3) write them."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestration.core.errors import InputError
from orchestration.exchange.imported import write_imported
from orchestration.exchange.omnetpp_file import read_results
from orchestration.exchange.omnetpp_import import import_omnetpp, list_results
from orchestration.results.reader import read_trial

RUN = "General-0-20250101-10:00:00-4242"
SCA = f"""\
version 3
run {RUN}
attr configname General
attr description "two \\"racks\\"\\nof hosts"
itervar k 30
config sim-time-limit 10ms
par Net.host[0] "mac address" "\\"AA\\""
# a note

scalar Net.leaf1.eth[2].queue marked:count 1834
attr unit pk
scalar "Net.host[0] app" "x y" -inf
statistic Net.host[3].app[0] fct:stats
field count 120
field mean 0.00083
attr unit s
histogram Net.leaf[0].eth[2].queue qlen:hist
field count 3
bin -inf 0
bin 0 1
bin 20 0
"""
VEC = f"""\
version 2
run {RUN}
attr configname General
param **.k 30
vector 0 Net.host[0].app[0] start:vector ETV
attr unit s
vector 1 Net.host[0].app[0] size:vector ETV
vector 2 Net.host[0].app[0] fct:vector
vector 3 Net.host[0].app[0] peer:vector TV
vector 4 Net.host[2].app[0] start:vector ETV
vector 5 Net.host[2].app[0] size:vector ETV
vector 6 Net.host[2].app[0] fct:vector TV
vector 7 Net.host[2].app[0] peer:vector TV
vector 8 Net.leaf1.eth[0].queue queueLength:vector ETV
vector 9 Net.leaf1.eth[0].queue marks:vector VT
0\t10\t0.000100000000\t0.000001
8\t11\t0.000104\t1500
4\t12\t0.000110\t0.0000025
1\t10\t0.000100\t4000
2\t0.000100\t0.00002
3\t0.000100\t1
5\t12\t0.000110\t1500
6\t0.000110\t0.00001
7\t0.000110\t0
0\t20\t0.000250\t0.0002
1\t20\t0.000250\t64
2\t0.000250\t0.000025
3\t0.000250\t2
8\t21\t0.000210\t4500
9\t7\t0.000150
9\t9\t0.000220
"""
MAPPING = r"""
testbed: graphcc
hosts: {"0": h1, "1": h2, "2": h7}
flows:
  kind: vectors
  module: 'Net\.host\[(?P<src>\d+)\]\.app\[0\]'
  start: start:vector
  bytes: size:vector
  fct: fct:vector
  dst: peer:vector
  time_unit: s
  size_unit: B
queues:
  module: 'Net\.(?P<device>\w+)\.(?P<port>eth\[\d+\])\.queue'
  length: queueLength:vector
  marked: marks:vector
  size_unit: B
  ports: {"leaf1:eth[0]": "leaf1:eth0"}
  sample_period: 50us
"""


@pytest.fixture
def write(tmp_path):
    def put(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


@pytest.fixture
def imported(write, tmp_path):
    def run(text=VEC, mapping=MAPPING, more=()):
        paths = [write("General-0.vec", text), *more]
        found = import_omnetpp(paths, write("map.yml", mapping))
        return read_trial(write_imported(found, tmp_path / "runs", label="omnetpp").folder)

    return run


def test_scalars_statistics_and_quotes(write):
    run = read_results(write("a.sca", SCA))[RUN]
    assert run.settings["description"] == 'two "racks"\nof hosts'
    assert run.settings["Net.host[0].mac address"] == '"AA"'
    assert [(r.kind, r.module, r.name, r.value.tolist()) for r in run.results] == [
        ("scalar", "Net.leaf1.eth[2].queue", "marked:count", [1834.0]),
        ("scalar", "Net.host[0] app", "x y", [-math.inf]),
        ("statistic", "Net.host[3].app[0]", "fct:stats", []),
        ("statistic", "Net.leaf[0].eth[2].queue", "qlen:hist", []),
    ]
    assert "unit" not in run.settings


def test_vectors_whose_lines_interleave(write):
    vectors = read_results(write("a.vec", VEC))[RUN].results
    assert vectors[0].t_ns.tolist() == [100_000, 250_000]
    assert vectors[0].value.tolist() == [0.000001, 0.0002]
    assert vectors[9].value.tolist() == [7, 9]
    assert vectors[9].t_ns.tolist() == [150_000, 220_000]


def test_flows_and_queues_as_the_mapping_says(imported):
    result = imported()
    schedule, flows, ports = (result.table(n) for n in ("schedule", "flows", "ports"))
    assert schedule["start_ns"].tolist() == [1_000, 2_500, 200_000]
    assert schedule["src"].tolist() == ["h1", "h7", "h1"]
    assert schedule["dst"].tolist() == ["h2", "h1", "h7"]
    assert schedule["bytes"].tolist() == [4000, 1500, 64]
    assert flows["fct_ns"].tolist() == [20_000, 10_000, 25_000]
    mine = (ports["device"] == "leaf1") & (ports["port"] == "eth0")
    assert ports["t_ns"][mine].tolist() == [50_000, 100_000, 150_000, 200_000]
    assert ports["qlen_bytes"][mine].tolist() == [-1, -1, 1500, 1500]
    assert ports["marked_packets"][mine].tolist() == [-1, -1, 7, 7]
    assert (ports["qlen_bytes"][~mine] == -1).all()
    assert "flows that were not completed" in result.facts["imported"]["missing"]
    assert "flows" not in result.stamp.checked


def test_flows_that_are_scalars_may_be_unfinished(imported):
    lines = ["version 3", f"run {RUN}"]
    for module, values in (("a[0]", (1, 2, 5, 3)), ("a[1]", (2, 3, 6, None))):
        for name, value in zip(("src", "dst", "size", "fct"), values, strict=True):
            if value is not None:
                lines.append(f"scalar Net.{module} {name} {value}")
        lines.append(f"scalar Net.{module} at 0.5")
    mapping = (
        "one_big_switch: {rate: 25Gbps, delay: 1us}\n"
        "flows: {kind: scalars, module: 'Net\\.a.*', src: src, dst: dst, start: at, bytes: size,"
        " fct: fct, time_unit: ms, size_unit: KB}\n"
    )
    result = imported("\n".join(lines) + "\n", mapping)
    assert result.table("flows")["status"].tolist() == ["done", "unfinished"]
    assert result.table("flows")["fct_ns"].tolist() == [3_000_000, -1]
    assert result.table("schedule")["bytes"].tolist() == [5000, 6000]
    assert "flows" in result.stamp.checked


def test_the_listing_shows_what_there_is_without_indices(write):
    found = list_results([write("a.vec", VEC), write("a.sca", SCA)])[RUN]
    rows = {(item.kind, item.module, item.name): (item.modules, item.values) for item in found}
    assert rows["vector", "Net.host[*].app[*]", "start:vector"] == (2, 3)
    assert rows["scalar", "Net.leaf1.eth[*].queue", "marked:count"] == (1, 1)
    assert rows["statistic", "Net.leaf[*].eth[*].queue", "qlen:hist"] == (1, 1)


BAD = {
    "version": (VEC.replace("version 2", "version 4"), MAPPING, r"vec:1: 'version 4' is not"),
    "no-version": (VEC.split("\n", 1)[1], MAPPING, "vec:1: .* is not `version 2`"),
    "empty": ("", MAPPING, "vec: is empty"),
    "cut": (VEC[:-3], MAPPING, "vec:31: the last line has no line break"),
    "cut-line": (VEC + "0\t30\n", MAPPING, "vec:32: .* the vector's 3 columns"),
    "unknown-id": (VEC + "77\t1\t2\t3\n", MAPPING, "vec:32: there is no vector '77'"),
    "time-back": (VEC + "0\t30\t0.0001\t3\n", MAPPING, "vec:32: the time of vector 0 decreases"),
    "rubbish": (b"\x89PNG\r\n\x00\xff\n", MAPPING, "vec:1: has bytes that are not text"),
    "number": (VEC.replace("4000", "4k"), MAPPING, "vec:19: '4k' is not a number"),
    "word": (VEC.replace("param", "parameter"), MAPPING, "vec:4: 'parameter' begins no line"),
    "quote": (VEC.replace("attr unit s", 'attr unit "s'), MAPPING, "vec:6: a quote has no end"),
    "no-statistic": (
        VEC.replace("attr unit s", "bin 0 1"),
        MAPPING,
        "vec:6: does not follow a stat",
    ),
    "not-whole": (VEC.replace("param **.k 30", "param"), MAPPING, "vec:4: 'param' is not complete"),
    "before-run": ("version 2\nscalar a b 1\n", MAPPING, "vec:2: comes before the first `run`"),
    "two-runs": (VEC + "run other\n", MAPPING, "the files have 2 runs"),
    "twice": (VEC + f"run {RUN}\n", MAPPING, "vec:32: a second run"),
    "module": (VEC, MAPPING.replace("Net", "Other"), r"map.yml:4: no module of run"),
    "regex": (
        VEC,
        MAPPING.replace("(?P<src>", "(?P<src"),
        "map.yml:6: is not a regular expression",
    ),
    "groups": (VEC, MAPPING.replace("<device>", "<switch>"), "map.yml:14: lacks the groups"),
    "name": (VEC, MAPPING.replace("size:vector", "bytes:vector"), "has no 'bytes:vector'"),
    "uneven": (VEC.replace("2\t0.000250\t0.000025\n", ""), MAPPING, "different numbers of values"),
    "host": (VEC.replace("7\t0.000110\t0\n", "7\t0.000110\t9\n"), MAPPING, "has no host '9'"),
    "port": (VEC, MAPPING.replace('"leaf1:eth[0]"', '"leaf9:eth[0]"'), "the queue leaf1:eth"),
    "backwards": (VEC.replace("0.00002\n", "-0.00002\n"), MAPPING, "ends before it starts"),
    "no-unit": (VEC, MAPPING.replace("  time_unit: s\n", ""), "missing field 'time_unit'"),
    "unit": (VEC, MAPPING.replace("time_unit: s", "time_unit: sec"), "'time_unit' is 'sec'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_leaves_nothing(imported, tmp_path, name):
    text, mapping, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        imported(text, mapping)
    assert all(problem.remedy for problem in caught.value.problems)
    assert not (tmp_path / "runs").exists()


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1
)


def quoted(word):
    """What opp_quotestr makes of a word."""
    if all(c.isalnum() or c in ".[]:-_*" for c in word) and not word.startswith("#"):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    scalars=st.lists(st.tuples(WORDS, WORDS, st.floats(allow_nan=False))),
    vectors=st.lists(
        st.tuples(
            WORDS,
            WORDS,
            st.sampled_from(["TV", "ETV", "VT"]),
            st.lists(st.tuples(st.integers(0, 10**12), st.floats(allow_nan=False)), max_size=5),
        ),
        max_size=4,
    ),
    order=st.randoms(use_true_random=False),
)
def test_values_written_are_values_read(tmp_path, scalars, vectors, order):
    lines = ["version 3", "run r"]
    lines += [f"scalar {quoted(m)} {quoted(n)} {value!r}" for m, n, value in scalars]
    data = []
    for number, (module, name, columns, samples) in enumerate(vectors):
        lines.append(f"vector {number} {quoted(module)} {quoted(name)} {columns}")
        data.append([])
        for event, (t_ns, value) in enumerate(sorted(samples, key=lambda s: s[0])):
            cells = {"E": event, "T": f"{t_ns // 10**9}.{t_ns % 10**9:09d}", "V": repr(value)}
            data[-1].append("\t".join([str(number), *(str(cells[c]) for c in columns)]))
    while any(data):
        lines.append(order.choice([rows for rows in data if rows]).pop(0))
    path = tmp_path / "a.vec"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = read_results(path)["r"]
    read = [(r.module, r.name, *r.value) for r in run.results[: len(scalars)]]
    assert read == scalars
    found = zip(run.results[len(scalars) :], vectors, strict=True)
    for vector, (module, name, _, samples) in found:
        samples = sorted(samples, key=lambda s: s[0])
        assert (vector.module, vector.name) == (module, name)
        assert vector.t_ns.tolist() == [t_ns for t_ns, _ in samples]
        np.testing.assert_array_equal(vector.value, [value for _, value in samples])
