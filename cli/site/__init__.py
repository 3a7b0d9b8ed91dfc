"""What one machine of a mesh needs: its files, certificates, unit and instructions, in a folder."""
