"""What the tests share: frameworks and devices, sample data, twins of the hash and of memory resources."""
