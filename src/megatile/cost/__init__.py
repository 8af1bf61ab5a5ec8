"""What a plan costs, without simulating it."""
