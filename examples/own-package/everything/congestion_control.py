"""A congestion control of RoCE NICs: `host: {congestion_control: additive}`."""

from pathlib import Path

from closloop import CongestionControl, Parameter

ADDITIVE = CongestionControl(
    Path(__file__).with_name("additive.c"),
    {"increase": Parameter("rate", 40, 1, 100_000, "added at each acknowledgement, Mbit/s")},
    marks="always",
    ack_every=4,
)
