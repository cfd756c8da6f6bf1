"""What several backends share: rigs, faults, Linux' settings, and time that is scaled or real."""
