"""Training of RL-CC: rollouts in ns-3 with the policy in its NICs, and the gradient of equation 3."""
