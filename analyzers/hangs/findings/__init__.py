"""Sentences about causes: the only place of this room that makes text for a reader."""
