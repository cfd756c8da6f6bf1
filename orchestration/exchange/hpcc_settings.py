"""What decides the results of a run of the HPCC ns-3 simulator and has no place in a testbed.

Facts from alibaba-edu/High-Precision-Congestion-Control, `scratch/third.cc` and `switch-mmu.cc`: a
switch has one buffer, and pauses a port's input at a share of what is free of it, always. The fork
of ConWeave (conweave-project/conweave-ns3, `scratch/network-load-balance.cc`) can switch PFC off,
and adds load balancing and IRN.
"""

from __future__ import annotations

from inventory.routing import PathTable
from inventory.topology import Testbed
from orchestration.exchange.hpcc_inputs import HpccConfig, HpccTopology
from orchestration.exchange.hpcc_parameters import window_bytes
from orchestration.model.import_facts import shared_buffer_words
from orchestration.model.units import format_size

_LOAD_BALANCING = {"2": "DRILL", "3": "CONGA", "6": "LetFlow", "9": "ConWeave"}


def run_settings(config: HpccConfig, topology: HpccTopology, testbed: Testbed) -> dict[str, str]:
    """Return those settings: name -> words about it. Without a config file, the defaults."""

    def text(key: str, default: str) -> str:
        return config.values.get(key, "").strip() or default

    def number(key: str, default: str) -> float:
        try:
            return float(text(key, default))
        except ValueError:
            return 1.0  # on, for what is not a number

    found = {"shared-buffer": shared_buffer_words(config.buffer_bytes)}
    if number("ENABLE_PFC", "1"):
        found["pfc"] = "PFC"
    mode = text("LB_MODE", "0")
    if number("LB_MODE", "0"):
        found["load-balancing"] = f"load balancing by {_LOAD_BALANCING.get(mode, mode)}"
    rates = [link.error_rate for link in topology.links if link.error_rate]
    if loss := number("ERROR_RATE_PER_LINK", "0"):
        rates.append(loss)
    if rates:
        found["link-loss"] = f"random loss of up to {max(rates):g} of a link's packets"
    # `uint32_t has_win = 1`: a config without the key has a window too
    if config.mode and number("HAS_WIN", "1"):
        window = window_bytes(testbed, PathTable(testbed), config.payload_bytes)
        found["window"] = f"a window of at most {format_size(window, 1)} for each flow"
    if number("ENABLE_IRN", "0"):
        found["loss-recovery"] = "IRN's loss recovery"
    return found
