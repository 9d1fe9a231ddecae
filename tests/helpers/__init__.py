"""Set-up that tests share."""
