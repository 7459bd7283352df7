"""Results as people see them: tables, progress, pictures. rich and matplotlib live here."""
