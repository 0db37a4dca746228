"""The commands of the hub, one file each."""
