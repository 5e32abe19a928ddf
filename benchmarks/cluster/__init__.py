"""Jobs on a simulated cluster without a shared disk, with the answers that they must get."""
