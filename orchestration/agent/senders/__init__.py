"""The agent's services that send traffic from a host."""
