"""Every sentence about text logs."""
