"""A Linux host's or switch's own interfaces: netlink, queues, sysctls."""
