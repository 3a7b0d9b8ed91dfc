"""Messages go from one recipient to another: parcels, records of recipients, the choice of an alternative, the three roles."""
