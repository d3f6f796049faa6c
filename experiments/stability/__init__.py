"""When prototypes collapse."""
