"""What this machine is and can do, behind one protocol per platform."""
