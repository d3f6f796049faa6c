"""One run: figures, gap, page."""
