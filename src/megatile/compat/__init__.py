"""Other people's names and formats. Nothing below imports this folder."""
