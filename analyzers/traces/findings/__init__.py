"""Write all sentences about traces: every title, reason, next step and verdict of the trace analyzer."""
