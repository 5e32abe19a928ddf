"""Write the sentences about causes of hangs; no other part of this analyzer makes text for a reader."""
