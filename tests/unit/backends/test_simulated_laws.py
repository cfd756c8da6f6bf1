"""The C++ headers that need no ns-3, compiled by themselves: RED's law, the link's rate."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import orchestration.backends.simulated as simulated
from orchestration.core.marking_probability import MarkingProbability, red_max_p

SOURCE = Path(simulated.__file__).parent / "ns3"
HARNESS = r"""
#include "red.h"
#include "shaper.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
using namespace closloop;
int main(int, char** v) {
    if (!std::strcmp(v[1], "red")) { // kmin kmax max_p, then queue lengths; 20,000 packets at each
        Red red(1, 5'000'000);
        red.Set(std::atoll(v[2]), std::atoll(v[3]), std::atoll(v[4]));
        for (char** at = v + 5; *at; ++at) {
            int marks = 0;
            for (int i = 0; i < 20'000; ++i) marks += red.Marks(std::atoll(*at));
            std::printf("%d\n", marks);
        }
    } else { // rate, frame: the time at which the last of 100,000 back-to-back frames may leave
        long long now = 0, rate = std::atoll(v[2]), frame = std::atoll(v[3]);
        Shaper shaper(rate, frame + 100, 24);
        for (int i = 0; i < 100'000;) {
            long long wait = shaper.Take(frame, now);
            if (wait) now += wait; else ++i;
        }
        std::printf("%lld\n", now);
    }
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("laws")
    (folder / "laws.cc").write_text(HARNESS)
    argv = ["g++", "-std=c++20", "-O1", "-Wall", "-Werror", f"-I{SOURCE}", "-o", "laws", "laws.cc"]
    subprocess.run(argv, cwd=folder, check=True)

    def answer(*words):
        out = subprocess.run(
            [folder / "laws", *map(str, words)], capture_output=True, text=True, check=True
        )
        return [int(line) for line in out.stdout.split()]

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("setting", [(5_000, 200_000, 0.01), (100_000, 400_000, 0.2), (9, 9, 1.0)])
def test_queues_mark_by_the_law_of_linux_red(run, setting):
    kmin, kmax, pmax = setting
    law, rng = MarkingProbability(kmin, kmax, pmax), np.random.default_rng(1)
    span = kmax - kmin
    queues = [0, max(0, kmin - 1), *(kmin + span * n // 8 for n in range(1, 9)), 2 * kmax]
    marked = run("red", kmin, kmax, red_max_p(pmax), *queues)
    for queue, seen in zip(queues, marked, strict=True):
        if queue < kmin or queue >= kmax:
            assert seen == (0 if queue < kmin else 20_000)
        else:
            low, high = law.marks_band(queue, 20_000, 0.9999, rng)
            assert low <= seen <= high + 1, queue


@pytest.mark.parametrize("rate_bps", [25_000_000_000, 100_000_000_000, 7_000_000_007])
def test_a_link_carries_its_rate_framing_counted(run, rate_bps):
    (took_ns,) = run("shaper", rate_bps, 1514)
    bits = 100_000 * (1514 + 24) * 8
    # the bucket's first frame and spare bytes are for nothing
    assert took_ns == pytest.approx((bits - (1614 + 24) * 8) * 1e9 / rate_bps, rel=1e-6)
