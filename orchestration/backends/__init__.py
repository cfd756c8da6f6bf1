"""The engines that run a trial: emulated, fluid, simulated, hardware."""
