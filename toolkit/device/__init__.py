"""What a device has: memory, cores, instruction sets, accelerators. Probed here (`profile`), or read from a file (`profile_file`)."""
