"""What `drumbeat doctor` makes of what was found. Pure: others look, these judge."""
