"""Disks that end, folders that turn read-only, damaged checkpoints, a second process."""
