"""Journals of any size, made from a topology, with what is true about them."""
