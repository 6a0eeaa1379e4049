"""Tables in files, and arrays under names."""
