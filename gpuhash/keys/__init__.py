"""Keys that are no plain integers to those who give them: strings, and several columns as one key."""
