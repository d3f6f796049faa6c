"""Orbits of satellites, clustered."""
