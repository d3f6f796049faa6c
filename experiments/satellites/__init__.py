"""Orbits of satellites without labels: clusters by DDCL on a small encoder beside k-means."""
