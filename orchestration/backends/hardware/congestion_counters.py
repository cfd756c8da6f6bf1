"""What RoCE NICs count of congestion, under the names of their drivers.

There are three numbers: the CE packets that a receiver gets, the CNPs that it sends (notification
point), and those that a sender gets (reaction point). Drivers call them differently, and versions
of one driver, too: names decide, not the driver. The names are those of

- mlx5: drivers/infiniband/hw/mlx5/counters.c (`cc_…` are its optional counters);
- bnxt_re: drivers/infiniband/hw/bnxt_re/hw_counters.c; those of Broadcom's own package have had
  mlx5's names (ROCm/rocm-systems, pull request 4961);
- irdma: drivers/infiniband/hw/irdma/verbs.c;
- ionic: its firmware tells them (drivers/infiniband/hw/ionic/ionic_hw_stats.c).

Soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c) has no DCQCN, and counts none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

CE_PACKETS, CNPS_SENT, CNPS_RECEIVED = "ce_packets", "cnps_sent", "cnps_received"
# In the order in which CE packets make them grow; of several names of a NIC, the first counts.
NAMES: Mapping[str, tuple[str, ...]] = {
    CE_PACKETS: (
        *("np_ecn_marked_roce_packets", "cc_rx_ce_pkts"),
        *("rx_ecn_marked_pkts", "RxECNMrkd", "rx_rdma_ecn_pkts"),
    ),
    CNPS_SENT: ("np_cnp_sent", "cc_tx_cnp_pkts", "tx_cnp_pkts", "cnpSent", "tx_rdma_cnp_pkts"),
    CNPS_RECEIVED: (
        *("rp_cnp_handled", "cc_rx_cnp_pkts"),
        *("rx_cnp_pkts", "cnpHandled", "rx_rdma_cnp_pkts"),
    ),
}
# Without these two, nobody knows whether a NIC takes part in DCQCN.
_NECESSARY = {CNPS_SENT: "CNPs sent", CNPS_RECEIVED: "CNPs received"}
# With fewer hosts no port gets more packets than it can send.
MIN_HOSTS = 3


@dataclass(frozen=True)
class Growth:
    """By how much a NIC's counter has grown, and what the driver calls it."""

    name: str
    count: int


class Counts(Protocol):
    """The growth of NICs' counters, as `NicMonitor` has it."""

    def growth_of(self, name: str) -> dict[str, int]:
        """Return by how much a counter has grown, for each NIC that has it."""


def congestion_growth(nics: Counts) -> dict[str, dict[str, Growth]]:
    """Return the growth of each of the three numbers, by NIC; a NIC may lack some."""
    found: dict[str, dict[str, Growth]] = {}
    for what, names in NAMES.items():
        of_what = found.setdefault(what, {})
        for name in names:
            for nic, count in nics.growth_of(name).items():
                of_what.setdefault(nic, Growth(name, count))
    return found


def congestion_facts(
    grown: Mapping[str, Mapping[str, Growth]],
) -> dict[str, dict[str, int | None]]:
    """Return the numbers of each NIC that counts one, for a trial's record; None for others."""
    nics = dict.fromkeys(nic for by_nic in grown.values() for nic in by_nic)
    return {
        nic: {what: by_nic[nic].count if nic in by_nic else None for what, by_nic in grown.items()}
        for nic in nics
    }


def untested_findings(
    hosts: int,
    grown: Mapping[str, Mapping[str, Growth]],
    drivers: Mapping[str, str],
) -> list[dict[str, str]]:
    """Return findings on RoCE NICs of which nobody knows whether marks slow them down.

    `hosts` is the number of RoCE hosts; `drivers` has the driver of each of their NICs, "" if
    unknown.
    """
    texts = []
    groups: dict[tuple[str, str], list[str]] = {}
    for nic, driver in drivers.items():
        lacks = " or ".join(word for what, word in _NECESSARY.items() if nic not in grown[what])
        if lacks:
            groups.setdefault((driver, lacks), []).append(nic)
    for (driver, lacks), nics in groups.items():
        more = f" and {len(nics) - 4} more" if len(nics) > 4 else ""
        subject = f"driver {driver}" if driver else "its driver"
        texts.append(
            f"nobody knows whether marks slow down {', '.join(nics[:4])}{more}: {subject} has no "
            f"counter of {lacks}. Compare the rates of two senders to one receiver by hand, or use "
            "a NIC and driver that count them"
        )
    if not texts and hosts < MIN_HOSTS:
        texts.append(
            f"nobody knows whether marks slow down RoCE NICs: with {hosts} RoCE hosts no port gets "
            f"more than it can send. Use {MIN_HOSTS} or more"
        )
    return [{"code": "marks-untested", "severity": "warning", "text": text} for text in texts]
