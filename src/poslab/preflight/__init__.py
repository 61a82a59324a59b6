"""What is refused before a folder is made."""
