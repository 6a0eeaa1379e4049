"""Columns of keys without a table: unique, factorize, isin and their orders; groups."""
