"""The host side: plans on real processes."""
