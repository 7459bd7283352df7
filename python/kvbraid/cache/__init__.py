"""The engine-side cache: tokens -> hashes -> hit -> allocation -> commit -> events."""
