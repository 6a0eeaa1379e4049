"""What is compiled on a user's machine, and what is said where something is missing."""
