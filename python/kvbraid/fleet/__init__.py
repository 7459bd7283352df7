"""Decoded events to index to score to explanation; pods and their states."""
