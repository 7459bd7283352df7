"""Results as people see them: tables, progress and pictures, made with rich and matplotlib."""
