"""What `drumbeat doctor` says of a script, a job file and a manifest."""
