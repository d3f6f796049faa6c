"""The studies of the source paper, each a folder with its question, code and results."""
