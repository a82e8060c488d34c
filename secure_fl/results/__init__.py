"""What a study leaves behind: its record, the summary of it, and what sites noted for themselves."""
