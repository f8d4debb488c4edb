"""The ways in, one file each."""
