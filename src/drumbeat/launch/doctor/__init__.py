"""What `drumbeat doctor` looks at: sockets, files, the machine. It judges nothing."""
