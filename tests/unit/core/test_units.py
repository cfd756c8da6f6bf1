"""Text with units to integers and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.units import (
    UnitError,
    format_duration,
    format_rate,
    format_size,
    parse_duration_ns,
    parse_rate_bps,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate_bps, "25Gbps", 25 * 10**9),
        (parse_rate_bps, " 2.5 Gbps ", 2_500_000_000),
        (parse_rate_bps, "1.6Tbps", 1_600 * 10**9),
        (parse_rate_bps, "9bps", 9),
        (parse_size_bytes, "64KB", 64_000),
        (parse_size_bytes, "64KiB", 65_536),
        (parse_size_bytes, "1.5MB", 1_500_000),
        (parse_size_bytes, "1_000B", 1_000),
        (parse_duration_ns, "100us", 100_000),
        (parse_duration_ns, "0.1us", 100),
        (parse_duration_ns, "2s", 2 * 10**9),
        # Decimal fractions are exact: 0.3 has no binary float.
        (parse_duration_ns, "0.3us", 300),
        (parse_size_bytes, "9007199254740993B", 2**53 + 1),
    ],
)
def test_parse(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_rate_bps, "25GBps", "write 25Gbps if bits were meant"),
        (parse_rate_bps, "25gbps", "write 25Gbps"),
        (parse_rate_bps, "25", "no unit for a rate: use one of bps, Kbps"),
        (parse_rate_bps, 25, "25 is not a rate with a unit: write it like 25Gbps"),
        (parse_rate_bps, "-1Gbps", "is not a rate: write it like 25Gbps"),
        (parse_rate_bps, "fast", "is not a rate"),
        (parse_rate_bps, "", "is not a rate"),
        (parse_size_bytes, "64kB", "write 64KB"),
        (parse_size_bytes, "64Kb", "write 64KB"),
        (parse_size_bytes, "0.5B", "is not a whole number of B: round it"),
        (parse_duration_ns, "1.5ns", "is not a whole number of ns: round it"),
        (parse_duration_ns, "1 minute", "unknown unit 'minute'"),
        (parse_duration_ns, None, "None is not a duration with a unit"),
        (parse_duration_ns, True, "True is not a duration with a unit"),
    ],
)
def test_refused_with_a_remedy(parse, text, said):
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (format_rate(25e9), "25Gbps"),
        (format_rate(2.5e9), "2.5Gbps"),
        (format_rate(0), "0bps"),
        (format_size(64_000), "64KB"),
        (format_size(1_500_000), "1.5MB"),
        (format_size(999), "999B"),
        (format_duration(100_000), "100us"),
        (format_duration(6_128, 3), "6.128us"),
        (format_duration(1_000, 0), "1us"),
        (format_duration(100, 0), "100ns"),
        (format_duration(-2_500), "-2.5us"),
    ],
)
def test_format(text, shown):
    assert text == shown


@given(st.integers(0, 10**18))
def test_parse_undoes_format(value):
    # 12 digits behind the point are enough for a whole number of ns in seconds.
    assert parse_duration_ns(format_duration(value, 9)) == pytest.approx(value, rel=1e-12)
    assert parse_rate_bps(f"{value}bps") == value
    assert parse_size_bytes(f"{value}KiB") == value * 1024


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_a_unit_error(text):
    try:
        value = parse_size_bytes(text)
    except UnitError:
        value = 0
    assert value >= 0
