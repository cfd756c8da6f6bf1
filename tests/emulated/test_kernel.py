"""The built kernel: it boots, and its clock stands still while it works."""

from orchestration.backends.emulated.kernel.cache import require_kernel
from orchestration.backends.emulated.kernel.check import check_kernel


def test_it_boots_and_keeps_virtual_time():
    report = check_kernel(require_kernel().path)
    # 20,000 system calls take no virtual time but for reading the clock
    assert report.busy_ns < 1_000
    assert report.sleep_ns // 10**9 == 1000
    assert {"dctcp", "cubic"} <= set(report.congestion_controls.split())
