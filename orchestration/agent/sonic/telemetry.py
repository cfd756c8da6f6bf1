"""Whether a SONiC switch has High Frequency Telemetry: the family that its driver registers.

orchagent makes the channel at its start if the ASIC can stream (HFTelOrch::isSupportedHFTel), and
then the vendor's driver registers a family of generic netlink; the release alone says nothing.
"""

from __future__ import annotations

import re

from ..linux.genetlink import USERSOCK, group_id
from ..small_files import text

CONSTANTS_FILE = "/etc/sonic/constants.yml"
PROFILES, GROUPS = "HIGH_FREQUENCY_TELEMETRY_PROFILE", "HIGH_FREQUENCY_TELEMETRY_GROUP"
FAMILY, GROUP = "sonic_stel", "ipfix"


def family(constants: str = CONSTANTS_FILE) -> tuple[str, str]:
    """Return the generic netlink family and its group, as the switch's constants name them."""
    part = text(constants).partition("high_frequency_telemetry:")[2]
    named = dict(re.findall(r"^\s+(genl_\w+):\s*['\"]?([^'\"\s#]+)", part, re.MULTILINE))
    return named.get("genl_family", FAMILY), named.get("genl_multicast_group", GROUP)


def offered(constants: str = CONSTANTS_FILE) -> bool:
    """Return whether the family is there: the ASIC can stream."""
    name, group = family(constants)
    try:
        return name == USERSOCK or bool(group_id(name, group))
    except OSError:
        return False
