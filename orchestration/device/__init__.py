"""How devices are reached: SSH, jump hosts, sudo, and the agents that run there (`agent`)."""
