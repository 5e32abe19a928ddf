"""What the answers mean for the user: findings and verdicts. Every sentence of the room is made here."""
