"""Documents as mixtures of prototypes."""
