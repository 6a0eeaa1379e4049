"""What tables are made of: their options, columns, rows and methods, whatever their class."""
