"""Arrays of every framework, in and out: dtypes, memory, arguments, and the arrays of one batch."""
