"""What ASICs are expected to make of thresholds."""

import pytest

from orchestration.agent.sonic.asics import cells_of


@pytest.mark.parametrize(
    ("platform", "cell", "step"),
    [
        ("x86_64-mlnx_msn2700-r0", 96, 6144),
        ("x86_64-nvidia_sn2201-r0", 96, 6144),
        ("x86_64-mlnx_msn3700c-r0", 144, 9216),
        ("x86_64-mlnx_msn4700-r0", 144, 9216),
        ("x86_64-nvidia_sn5600-r0", 192, 12288),
        ("x86_64-nvidia_sn5640_simx-r0", 192, 12288),
        ("x86_64-nvidia_sn6600_ld-r0", 256, 16384),
    ],
)
def test_spectrum_rounds_up_to_64_cells(platform, cell, step):
    cells = cells_of("mellanox", platform, None)
    assert (cells.cell_bytes, cells.step_bytes) == (cell, step)
    assert [cells.expected(n) for n in (1, step, step + 1)] == [step, step, 2 * step]
    assert f"rounded up to {step} B" in cells.description


def test_what_the_switch_says_goes_before_the_table():
    cells = cells_of("mellanox", "x86_64-mlnx_msn2700-r0", 112)
    assert (cells.cell_bytes, cells.step_bytes) == (112, 7168)


@pytest.mark.parametrize(
    ("asic", "platform", "said"),
    [
        ("broadcom", "x86_64-arista_7060x6_64pe_b", "208 or 254 B, by chip"),
        ("cisco-8000", "x86_64-8101_32fh_o-r0", "buffers of 384 B"),
        ("mellanox", "x86_64-nvidia_sn9000-r0", "64 cells of unknown size"),
        ("virtual", "x86_64-closloop_virtual-r0", "units that are not known"),
    ],
)
def test_what_is_not_known_is_said_to_be_unknown(asic, platform, said):
    cells = cells_of(asic, platform, None)
    assert cells.expected(5000) is None
    assert said in cells.description
