"""Training of RL-CC: rollouts in ns-3, the policy in its NICs, and equation 3's gradient."""
