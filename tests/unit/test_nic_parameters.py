"""DCQCN parameters over their surfaces, in folders as drivers make them; counters that wrap."""

import errno
import re
from pathlib import Path

import pytest

from collectors.readers import rdma as agent
from inventory.rack import Access
from orchestration.backends.hardware.nic import (
    CounterSeries,
    Nic,
    parse_mlxconfig,
    parse_rdma_statistic,
    validate,
)
from orchestration.device.agent.dcqcn import BY_NAME, PARAMETERS
from orchestration.device.agent.main import OperationError
from orchestration.model.errors import InputError

RECORDED = Path(__file__).parents[1] / "hardware" / "recorded"

# drivers/infiniband/hw/mlx5/cong.c
_DEBUGFS = """
    rp_clamp_tgt_rate rp_clamp_tgt_rate_ati rp_time_reset rp_byte_reset rp_threshold rp_ai_rate
    rp_max_rate rp_hai_rate rp_min_dec_fac rp_min_rate rp_rate_to_set_on_first_cnp rp_dce_tcp_g
    rp_dce_tcp_rtt rp_rate_reduce_monitor_period rp_initial_alpha_value rp_gd
    np_min_time_between_cnps np_cnp_dscp np_cnp_prio_mode np_cnp_prio
"""
# MLNX_OFED's ecn folder
_ROCE_RP = """
    clamp_tgt_rate clamp_tgt_rate_after_time_inc rpg_time_reset rpg_byte_reset rpg_threshold
    rpg_max_rate rpg_ai_rate rpg_hai_rate rpg_gd rpg_min_dec_fac rpg_min_rate
    rate_to_set_on_first_cnp dce_tcp_g dce_tcp_rtt rate_reduce_monitor_period initial_alpha_value
"""
DEBUGFS, ROCE_RP = _DEBUGFS.split(), _ROCE_RP.split()
ROCE_NP = ("min_time_between_cnps", "cnp_dscp", "cnp_802p_prio")
PCI = "0000:3b:00.0"
# Defaults as real dumps have them.
DEFAULTS = {
    "clamp_tgt_rate": 0, "clamp_tgt_rate_after_time_inc": 1, "rpg_time_reset": 300,
    "rpg_byte_reset": 32767, "rpg_threshold": 1, "rpg_max_rate": 0, "rpg_ai_rate": 5,
    "rpg_hai_rate": 50, "rpg_gd": 11, "rpg_min_dec_fac": 50, "rpg_min_rate": 1,
    "rate_to_set_on_first_cnp": 0, "dce_tcp_g": 1019, "dce_tcp_rtt": 1,
    "rate_reduce_monitor_period": 4, "initial_alpha_value": 1023, "min_time_between_cnps": 4,
    "cnp_dscp": 48, "cnp_802p_prio": 6, "cnp_prio_mode": 1,
}  # fmt: skip
HW_COUNTERS = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "out_of_sequence")


class Machine:
    """A device's /sys as folders: an interface, perhaps with a NIC's files."""

    def __init__(self, root):
        self.places = agent.Places(*(str(root / name) for name in ("net", "infiniband", "debug")))
        self.net = root / "net" / "nic0"
        self.debugfs = root / "debug" / "mlx5" / PCI / "cc_params"
        self.ecn = self.net / "ecn"
        device = root / "devices" / PCI
        device.mkdir(parents=True)
        self.net.mkdir(parents=True)
        (self.net / "device").symlink_to(device)
        (self.net / "speed").write_text("100000\n")

    def with_debugfs(self, names=DEBUGFS):
        self.debugfs.mkdir(parents=True)
        for parameter in PARAMETERS:
            if parameter.debugfs in names:
                (self.debugfs / parameter.debugfs).write_text(f"{DEFAULTS[parameter.name]}\n")
        return self

    def with_sysfs(self, level=""):
        for side, names in (("roce_rp", ROCE_RP), ("roce_np", ROCE_NP)):
            folder = self.ecn / side / level
            folder.mkdir(parents=True)
            for name in names:
                (folder / name).write_text(f"{DEFAULTS[name]}\n")
            (self.ecn / side / "enable").mkdir()
            for priority in range(8):
                (self.ecn / side / "enable" / str(priority)).write_text("1\n")
        return self

    def ask(self, operation, **arguments):
        return operation({"interface": "nic0", "rdma_device": "mlx5_0", **arguments}, self.places)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


class Loop:
    """An agent without a network between."""

    def __init__(self, machine):
        self.machine = machine
        self.asked = []

    def call(self, op, timeout_s=0.0, **arguments):
        self.asked.append(op)
        name = {"nic.dcqcn.read": "read_dcqcn", "nic.dcqcn.write": "write_dcqcn"}.get(op)
        return self.machine.ask(getattr(agent, name or op.removeprefix("nic.")), **arguments)


def nic_of(machine):
    return Nic(Loop(machine), Access("h1", "10.9.0.1", nic="roce", rdma_device="mlx5_0"), "nic0")


def test_the_names_of_every_surface():
    assert {p.debugfs for p in PARAMETERS} == set(DEBUGFS)
    assert {p.sysfs for p in PARAMETERS if p.sysfs} == {
        *(f"roce_rp/{name}" for name in ROCE_RP), *(f"roce_np/{name}" for name in ROCE_NP)
    }  # fmt: skip
    assert all(p.unit and p.least <= DEFAULTS[p.name] <= p.most for p in PARAMETERS)


@pytest.mark.parametrize("surface", ["debugfs", "sysfs", "params"])
def test_read_write_undo(machine, surface):
    if surface == "debugfs":
        machine.with_debugfs()
    else:
        machine.with_sysfs("params" if surface == "params" else "")
    nic = nic_of(machine)
    before = nic.read()
    assert before == {
        n: v for n, v in DEFAULTS.items() if surface == "debugfs" or n != "cnp_prio_mode"
    }
    wanted = {"rpg_ai_rate": 40, "dce_tcp_g": 1000}
    written = nic.write(wanted, 100 * 10**9)
    assert (written.values, written.previous) == (wanted, {"rpg_ai_rate": 5, "dce_tcp_g": 1019})
    assert nic.read() == {**before, **wanted}
    nic.write(written.previous)
    assert nic.read() == before


def test_capabilities(machine):
    machine.with_sysfs("params")
    found = nic_of(machine).capabilities()
    assert found.pci == PCI
    assert set(found.surfaces.values()) == {"sysfs"}
    assert found.enabled == {"roce_rp": tuple(range(8)), "roce_np": tuple(range(8))}


def test_debugfs_goes_before_sysfs_and_may_lack_names(machine):
    """Older kernels lack rp_max_rate; OFED beside it has it."""
    machine.with_debugfs([name for name in DEBUGFS if name != "rp_max_rate"]).with_sysfs()
    surfaces = nic_of(machine).capabilities().surfaces
    assert surfaces["rpg_ai_rate"] == "debugfs"
    assert surfaces["rpg_max_rate"] == "sysfs"


def test_writing_the_priority_clears_its_mode(machine, monkeypatch):
    machine.with_debugfs()
    write = agent._write

    def like_the_driver(path, name, value):
        write(path, name, value)
        if name == "cnp_802p_prio":
            (machine.debugfs / "np_cnp_prio_mode").write_text("0\n")

    monkeypatch.setattr(agent, "_write", like_the_driver)
    nic = nic_of(machine)
    before = nic.read()
    written = nic.write({"cnp_802p_prio": 5})
    assert nic.read()["cnp_prio_mode"] == 0
    assert written.previous == {"cnp_802p_prio": 6, "cnp_prio_mode": 1}
    nic.write(written.previous)
    assert nic.read() == before


@pytest.mark.parametrize("fails", ["refused", "rounded"])
def test_a_write_that_fails_half_way_is_undone(machine, monkeypatch, fails):
    machine.with_debugfs()
    write = agent._write

    def some_nic(path, name, value):
        if name == "dce_tcp_g" and value == 7:
            if fails == "refused":
                raise OperationError("the NIC refuses dce_tcp_g = 7: Invalid argument")
            value = 8
        write(path, name, value)

    monkeypatch.setattr(agent, "_write", some_nic)
    nic = nic_of(machine)
    before = nic.read()
    with pytest.raises(OperationError, match="dce_tcp_g"):
        nic.write({"rpg_ai_rate": 40, "dce_tcp_g": 7})
    assert nic.read() == before


def test_what_cannot_be_put_back_is_told(machine, monkeypatch):
    machine.with_debugfs()
    write = agent._write

    def dying(path, name, value):
        if name == "dce_tcp_g" or value == DEFAULTS[name]:
            raise OperationError(f"the NIC refuses {name}")
        write(path, name, value)

    monkeypatch.setattr(agent, "_write", dying)
    with pytest.raises(OperationError, match="and rpg_ai_rate could not be put back") as caught:
        machine.ask(agent.write_dcqcn, values={"rpg_ai_rate": 40, "dce_tcp_g": 7})
    assert caught.value.remedy == "set them by hand to 5"


def test_an_error_of_the_driver_is_told(machine, monkeypatch):
    machine.with_debugfs()
    real = open

    def refusing(path, mode="r", **options):
        if mode == "w" and str(path).endswith("rp_gd"):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, mode, **options)

    monkeypatch.setattr("builtins.open", refusing)
    with pytest.raises(OperationError, match=r"the NIC refuses rpg_gd = 12: Invalid argument"):
        machine.ask(agent.write_dcqcn, values={"rpg_gd": 12})


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"rpg_gd": 16}, "rpg_gd is 16, out of range"),
        ({"rpg_min_dec_fac": 0}, "rpg_min_dec_fac is 0, out of range"),
        ({"dce_tcp_g": 1024}, "dce_tcp_g is 1024, out of range"),
        ({"cnp_dscp": 64}, "cnp_dscp is 64, out of range"),
        ({"rpg_ai_rate": 100_001}, "rpg_ai_rate is 100001, out of range"),
        ({"rpg_ai_rate": 2.5}, "rpg_ai_rate is 2.5, not a whole number"),
        ({"clamp_tgt_rate": True}, "clamp_tgt_rate is True, not a whole number"),
        ({"rp_ai_rate": 5}, "no DCQCN parameter 'rp_ai_rate'"),
        ({"rpg_min_rate": 20, "rpg_max_rate": 10}, "rpg_min_rate 20 is above rpg_max_rate 10"),
    ],
)
def test_values_that_no_nic_sees(machine, values, what):
    machine.with_debugfs()
    nic = nic_of(machine)
    with pytest.raises(InputError, match=re.escape(what)):
        nic.write(values, line_rate_bps=100 * 10**9)
    assert nic._agent.asked == []


def test_all_refusals_at_once():
    with pytest.raises(InputError) as caught:
        validate({"rpg_gd": 16, "cnp_dscp": 64})
    assert len(caught.value.problems) == 2
    assert all(problem.remedy for problem in caught.value.problems)


def test_the_agent_refuses_by_itself_too(machine):
    machine.with_debugfs()
    with pytest.raises(OperationError, match="rpg_ai_rate is 100001"):
        machine.ask(agent.write_dcqcn, values={"rpg_ai_rate": 100_001})
    with pytest.raises(OperationError, match="has no interface"):
        agent.read_dcqcn({"interface": "../eth0"}, machine.places)


def test_a_nic_without_dcqcn(machine):
    assert nic_of(machine).capabilities().surfaces == {}
    with pytest.raises(OperationError, match="offers no DCQCN parameters"):
        machine.ask(agent.read_dcqcn)


def test_a_file_without_a_number(machine):
    machine.with_debugfs()
    (machine.debugfs / "rp_gd").write_text("$(reboot)\n")
    with pytest.raises(OperationError, match="has no number"):
        machine.ask(agent.read_dcqcn)


# lines as `mlxconfig -d DEVICE q` prints them
MLXCONFIG = """
Configurations:                                      Next Boot
        ROCE_CC_PRIO_MASK_P1                        255
        CLAMP_TGT_RATE_AFTER_TIME_INC_P1            True(1)
        CLAMP_TGT_RATE_P1                           False(0)
        RPG_TIME_RESET_P1                           300
*       RPG_AI_RATE_P1                              5
        RPG_AI_RATE_P2                              9
        CNP_DSCP_P1                                 0x30
        SRIOV_EN                                    True(1)
"""


def test_mlxconfig():
    assert parse_mlxconfig(MLXCONFIG) == {
        "clamp_tgt_rate_after_time_inc": 1, "clamp_tgt_rate": 0, "rpg_time_reset": 300,
        "rpg_ai_rate": 5, "cnp_dscp": 48,
    }  # fmt: skip
    assert parse_mlxconfig("-E- Failed to open the device") == {}


def test_counters_of_a_port(machine, tmp_path):
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "counters").mkdir()
    for number, name in enumerate(HW_COUNTERS):
        (port / "hw_counters" / name).write_text(f"{number}\n")
    (port / "hw_counters" / "lifespan").write_text("10\n")
    (port / "counters" / "port_xmit_data").write_text("12\n")
    hw, volume, missing = nic_of(machine).counters(["hw", "port", "ethtool"])
    assert hw.values == {name: number for number, name in enumerate(HW_COUNTERS)}
    assert volume.values == {"port_xmit_data": 12}
    assert 0 < hw.t_ns <= volume.t_ns <= missing.t_ns
    assert missing.values == {}
    assert "the statistics of nic0 cannot be read" in missing.problem


def test_recorded_statistics():
    """Recorded from Soft-RoCE, Linux 6.18, iproute2 6.1: the same counters by both ways."""
    values = parse_rdma_statistic((RECORDED / "nic-rdma-statistic.json").read_text())
    lines = (RECORDED / "nic-hw-counters.txt").read_text().split()
    counters = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
    assert counters.pop("lifespan") == 10
    assert values == counters
    assert parse_rdma_statistic("[]") == {}
    with pytest.raises(ValueError):
        parse_rdma_statistic("Wrong device name\n")


def test_counters_that_wrap_go_on():
    series = CounterSeries("hw")
    assert series.add({"np_cnp_sent": 2**32 - 5}) == {"np_cnp_sent": 0}
    assert series.add({"np_cnp_sent": 10}) == {"np_cnp_sent": 15}
    assert series.add({"np_cnp_sent": 2**31}) == {"np_cnp_sent": 2**31 + 5}


def test_counters_that_were_reset_count_on():
    series = CounterSeries("hw")
    series.add({"np_cnp_sent": 100})
    counts = series.add({"np_cnp_sent": 7, "rp_cnp_handled": 3})
    assert counts == {"np_cnp_sent": 7, "rp_cnp_handled": 0}


def test_wide_counters_do_not_wrap_at_32_bits():
    series = CounterSeries("rdma")
    series.add({"rdma_tx_bytes": 2**32 - 1, "np_cnp_sent": 2**40})
    counts = series.add({"rdma_tx_bytes": 2**33, "np_cnp_sent": 5})
    assert counts == {"rdma_tx_bytes": 2**32 + 1, "np_cnp_sent": 5}


def test_every_parameter_is_found_by_its_name():
    assert set(BY_NAME) == set(DEFAULTS)
