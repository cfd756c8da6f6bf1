"""Search for the best static setting of a campaign, and of each of its conditions."""
