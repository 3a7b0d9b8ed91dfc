"""Tariffs, exact rating, invoices, and who has paid. Everything here works on small tables, without Spark."""
