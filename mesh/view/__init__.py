"""What a broker knows of the mesh: link state, interest, trees, zones."""
