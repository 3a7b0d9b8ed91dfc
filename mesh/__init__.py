"""The mesh without input or output: numbers, envelope, link state, interest, trees, windows, custody, simulation."""
