"""Codebooks, stacks of them, and what they return."""
