"""Private parts that the public modules share."""
