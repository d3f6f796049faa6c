"""Images to tokens on disk, and back."""
