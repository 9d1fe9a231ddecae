"""Data: texts by user, tokenised once, read by user without a copy."""
