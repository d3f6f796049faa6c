"""One module for each command, loaded when it is called: ``command`` is the click command."""
